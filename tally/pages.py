"""Which addresses are one page: the declaration in `counters.py`, beyond what RFC 3986 says of spellings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import SplitResult

from .errors import ConfigurationError

KEEP, DROP = "keep", "drop"
_PARAMETER = re.compile(r"\*|[A-Za-z0-9._~\[\]-]+\*?")
_FILE = re.compile(r"[A-Za-z0-9._~-]+")

# Brave, uBlock Origin, AdGuard and ClearURLs take most of these off the addresses of every site (brave-core's
# `query_filter/utils.cc`, uAssets' `privacy.txt` and `privacy-removeparam.txt`, AdguardFilters' `general_url.txt`,
# ClearURLs' `globalRules`). Matomo's campaigns are here too, and the click ids of more advertisers. Left out are names
# that pages give to parameters of their own, as `ref`. No package fits: of those on PyPI, courlan drops `source` and
# `uid`, and detrack drops `context` and `pid`.
_TRACKING = """
    utm_* gclid gclsrc gbraid wbraid dclid gad_* srsltid _ga _gl usqp ga_source ga_medium ga_term ga_content ga_campaign
    ga_place fbclid igshid igsh fb_action_* fb_comment_id fb_ref fb_source action_object_map action_ref_map
    action_type_map msclkid ttclid twclid __twitter_impression li_fat_id epik rdt_cid sccid qclid tgclid yclid ysclid
    ymclid yadclid yadordid _openstat erid tblci dicbo wickedid rb_clickid tduid sscid awc admitad_uid cjevent cjdata
    irclickid irgwc ir_campaignid ir_adid ir_partnerid ef_id s_kwcid s_cid adobe_mc* adjust_* gps_adid unicorn_click_id
    _branch_match_id _branch_referrer mtm_* matomo_* piwik_* pk_campaign pk_cpn pk_keyword pk_kwd pk_source pk_medium
    pk_content pk_cid pk_vid itm_source itm_medium itm_campaign itm_content itm_term hmb_campaign hmb_medium hmb_source
    cm_mmc* wt_mc wt_zmc at_campaign* at_custom* at_link* at_recipient_* at_medium at_creation at_emailtype at_ptr_name
    at_send_date xtor mc_cid mc_eid mc_tc mkt_tok _hsenc _hsmi __hstc __hssc __hsfp hsCtaTracking hsa_* _kx _ke
    oly_anon_id oly_enc_id vero_conv vero_id __s ml_subscriber ml_subscriber_hash bsft_* oft_id oft_ids oft_k oft_lk
    oft_d oft_c oft_ck oft_sk vgo_ee dm_i _bhlid bbeml et_rid ss_email_id sc_customer sc_eh sc_uid elqTrackId
    elqCampaignId _cldee mindbox-click-id mindbox-message-key cx_click cx_recsOrder cx_recsWidget guccounter
    guce_referrer* __cf_chl_*
"""
TRACKING = tuple(_TRACKING.split())
"""Parameters of advertisements, mails and campaigns: they say how a visitor came, and never what the page shows."""


@dataclass(frozen=True)
class Pages:
    """What is no part of a page's name. A wrong field raises ConfigurationError. Without fields, nothing is dropped."""

    drop: tuple[str, ...] = ()
    """Parameters of the query, in any case. With a `*` at its end, a name stands for all that begin so."""
    trailing_slash: str = KEEP
    """`drop`: `/a/` is `/a`. `keep`: they are two pages."""
    index: tuple[str, ...] = ()
    """Files that stand for their folder. With `index.html`, `/a/index.html` is `/a/`."""

    def __post_init__(self) -> None:
        for field, form in (("drop", _PARAMETER), ("index", _FILE)):
            names = getattr(self, field)
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
                raise ConfigurationError(f"PAGES: {field} is {names!r}, but must be a tuple of names")
            for name in names:
                if not form.fullmatch(name):
                    raise ConfigurationError(f"PAGES: {field} has {name!r}, but a name has the form {form.pattern}")
        if self.trailing_slash not in (KEEP, DROP):
            raise ConfigurationError(f"PAGES: trailing_slash is {self.trailing_slash!r}, but must be {KEEP} or {DROP}")

    def named(self, address: SplitResult) -> SplitResult:
        """The page's own address. `address` is normalised by RFC 3986; applied again, this changes nothing."""
        return address._replace(path=self._path(address.path), query=self._query(address.query))

    def _path(self, path: str) -> str:
        while True:  # each turn makes it shorter
            if self.trailing_slash == DROP:
                path = path.rstrip("/")
            folder, _, file = path.rpartition("/")
            if file not in self.index:
                return path or "/"
            path = f"{folder}/"

    def _query(self, query: str) -> str:
        return "&".join(parameter for parameter in query.split("&") if not self._drops(parameter)) if query else ""

    def _drops(self, parameter: str) -> bool:
        name = parameter.partition("=")[0].lower()
        names, beginnings = self._dropped
        return name in names or name.startswith(beginnings)

    @cached_property
    def _dropped(self) -> tuple[frozenset[str], tuple[str, ...]]:
        names = [name.lower() for name in self.drop]
        return frozenset(names), tuple(name[:-1] for name in names if name.endswith("*"))


AS_SPELT = Pages()
"""Nothing is dropped: RFC 3986 alone."""


def declared(counters: Mapping[str, object]) -> Pages:
    """PAGES of what `counters.py` declares. Without it nothing is dropped. Raises ConfigurationError."""
    pages = counters.get("PAGES", AS_SPELT)
    if not isinstance(pages, Pages):
        raise ConfigurationError("counters.py: PAGES must be a Pages(…)")
    return pages
