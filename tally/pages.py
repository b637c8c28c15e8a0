"""Pages: which addresses are the same page. RFC 3986 decides first, then PAGES of `counters.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import SplitResult, unquote

from .errors import ConfigurationError

KEEP, DROP = "keep", "drop"
_NAME = r"[A-Za-z0-9._~\[\]-]+"
_PARAMETER_PATTERN = re.compile(rf"\*|\*?{_NAME}\*?|{_NAME}(\+{_NAME})+")
_BEFORE_SEMICOLON = re.compile(r"(?=;|%3B)")  # splits before each `;`, so every part but the first begins with it
_LEADING_SEMICOLON = re.compile(r"^(;|%3B)")
# In a value: `?` or `&`, or an encoded `?`, `&`, `;` or `#`.
_INNER_SEPARATOR = re.compile(r"([?&]|%(?:25)*(?:3F|26|3B|23))", re.IGNORECASE)
_INNER_EQUALS = re.compile(r"=|%(?:25)*3D", re.IGNORECASE)
INNER_ENCODINGS_MAX = 4  # how often the name of a parameter inside a value may be percent-encoded
_FILE_PATTERN = re.compile(r"[A-Za-z0-9._~-]+")

# Brave, uBlock Origin, AdGuard and ClearURLs remove most of these from the addresses of every site.
# `tests/unit/page_parameters.txt` says of each name in _TRACKING and _CREDENTIALS which public lists have it. Left out
# are names that pages give to parameters of their own, such as `ref`. No package on PyPI fits: courlan also drops
# `source` and `uid`, and detrack drops `context` and `pid`.
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
    guce_referrer* __cf_chl_* ck_subscriber_id omnisendContactID sfmc_* trk_contact trk_msg trk_module trk_sid
    _bta_c _bta_tid mibextid sms_click sms_source sms_uph cm_cr cm_me _io_session_id __io_lv ymid os_ehash h_sid h_slt
"""
# Sources: Sentry's SDK scrubs most names before `code+state`, OpenTelemetry redacts signatures, Matomo removes ids of
# sessions; RFC 5849, 6749 and 7009, OpenID Connect, SAML and signed addresses have the others. Pages have parameters
# `code`, `key`, `login` and `state` of their own, so these names are here only in pairs. OAuth sends `code` and `state`
# together, and WordPress `key` and `login`. If an address has both names, both are dropped.
_CREDENTIALS = """
    *password* *passwd pwd *secret *token *token] auth authorization credentials *api_key *api-key *apikey
    private_key privatekey mysql_pwd jwt otp session sessionid session_id _session user_session connect.sid
    aiohttp_session phpsessid jsessionid aspsessionid* sid cfid csrf _csrf _xsrf
    code+state session_state id_token_hint login_hint nonce oauth_verifier oauth_signature key+login
    samlrequest samlresponse samlart relaystate signature sig x-amz-* x-goog-* awsaccesskeyid key-pair-id
    *email *e-mail *email_address *emailaddress
"""
CREDENTIALS = tuple(_CREDENTIALS.split())
"""Parameters that are credentials, or say who the visitor is. They do not say what the page shows."""
TRACKING = tuple(_TRACKING.split())
"""Parameters of advertisements, mails and campaigns. They say where a visitor came from, not what the page shows."""


@dataclass(frozen=True)
class Pages:
    """The parts of an address that do not say what the page shows. If addresses differ only in these parts, they are
    one page.

    A wrong field raises ConfigurationError.
    """

    drop: tuple[str, ...] = CREDENTIALS
    """Parameters of the query and of the path (`/a;jsessionid=7`), in any case. A `*` at an end of a name matches any
    text, and `*` alone every parameter of the query. `a+b` drops both if the query has both."""
    trailing_slash: str = KEEP
    """`drop`: `/a/` is `/a`. `keep`: they are two pages."""
    index: tuple[str, ...] = ()
    """Files that mean their folder. With `index.html`, `/a/index.html` is `/a/`."""

    def __post_init__(self) -> None:
        for field, pattern in (("drop", _PARAMETER_PATTERN), ("index", _FILE_PATTERN)):
            names = getattr(self, field)
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
                raise ConfigurationError(f"PAGES: {field} is {names!r}, but must be a tuple of names")
            for name in names:
                if not pattern.fullmatch(name):
                    raise ConfigurationError(f"PAGES: {field} has {name!r}, but a name has the form {pattern.pattern}")
        if self.trailing_slash not in (KEEP, DROP):
            raise ConfigurationError(f"PAGES: trailing_slash is {self.trailing_slash!r}, but must be {KEEP} or {DROP}")

    def canonical(self, address: SplitResult) -> SplitResult:
        """Returns the canonical URL. `address` is normalised by RFC 3986. A canonical URL is returned unchanged."""
        return address._replace(path=self._path(address.path), query=self._query(address.query))

    def _path(self, path: str) -> str:
        if ";" in path or _INNER_SEPARATOR.search(path):
            first, *between, last = map(self._segment, path.split("/"))
            path = "/".join([first, *filter(None, between), last])  # `/a/;sid=7/b` becomes `/a/b`
        while True:  # ends, because each turn makes the path shorter
            if self.trailing_slash == DROP:
                path = path.rstrip("/")
            folder, _, file = path.rpartition("/")
            if file not in self.index:
                return path or "/"
            path = f"{folder}/"

    def _segment(self, segment: str) -> str:
        """Returns a segment of the path without the parameters that are dropped; "" if `.` or `..` would be left."""
        name, *parameters = _BEFORE_SEMICOLON.split(segment)
        others = [self._parameter(one) for one in parameters if not self._dropped_in_path.fullmatch(_name(one))]
        inner_start = found.start() if (found := _INNER_SEPARATOR.search(name)) else len(name)
        rest = name[:inner_start] + self._without_inner_credentials(name[inner_start:]) + "".join(others)
        return "" if rest in (".", "..") else rest

    def _query(self, query: str) -> str:
        if not query:
            return ""
        parameters = [_BEFORE_SEMICOLON.split(parameter) for parameter in query.split("&")]
        paired_names = self._dropped_pairs({_name(part) for parts in parameters for part in parts})
        remaining = []
        for first, *others in parameters:
            parts = [self._parameter(one) for one in others if not self._is_dropped(one, paired_names)]
            if not self._is_dropped(first, paired_names):
                remaining.append("".join([self._parameter(first), *parts]))
            elif parts:  # the first parameter is dropped: `;b%3D7` becomes `b=7`
                remaining.append(_LEADING_SEMICOLON.sub("", "".join(parts)).replace("%3D", "=", 1))
        return "&".join(remaining)

    def _dropped_pairs(self, names: set[str]) -> set[str]:
        """Returns the names of each pair that `names` has completely, such as `code` and `state`: both are dropped."""
        return {name for pair in self._pairs if pair <= names for name in pair}

    def _parameter(self, part: str) -> str:
        """Returns a parameter without the credentials inside its name or value. A name may be an address: in
        `?/topic?sid=7` the name is `/topic?sid`."""
        separator = "".join(_LEADING_SEMICOLON.findall(part))
        name, equals, value = self._without_inner_credentials(part.removeprefix(separator)).partition("=")
        return f"{separator}{name}{equals}{self._without_inner_credentials(value)}"

    def _without_inner_credentials(self, value: str) -> str:
        """Returns a value without the credentials inside it. A value may be an address or a query: `/x%3Fsid%3D7`
        becomes `/x`, also if it is percent-encoded many times. Other parts are kept, because they may say what the page
        shows, such as a search. After dropped parts, the separator of the first stays: `?sid=7&q=1` is `?q=1`."""
        first, *others = _INNER_SEPARATOR.split(value)
        parts = [("", first), *zip(others[::2], others[1::2], strict=True)]  # separators and parts alternate
        paired_names = self._dropped_pairs({_inner_name(part) for _, part in parts})
        rest, first_separator = "", None
        for separator, part in parts:
            name = _inner_name(part)
            if name in paired_names or self._dropped_in_value.fullmatch(name):
                first_separator = separator if first_separator is None else first_separator
            else:
                rest += (separator if first_separator is None else first_separator) + part
                first_separator = None
        return rest

    def _is_dropped(self, part: str, paired_names: set[str]) -> bool:
        name = _name(part)
        return name in paired_names or self._dropped_in_query.fullmatch(name) is not None

    @cached_property
    def _dropped_in_query(self) -> re.Pattern[str]:
        return _pattern_of_names(self.drop)

    @cached_property
    def _dropped_in_path(self) -> re.Pattern[str]:
        return _pattern_of_names(name for name in self.drop if name != "*")

    @cached_property
    def _dropped_in_value(self) -> re.Pattern[str]:
        return _pattern_of_names(name for name in self.drop if name in CREDENTIALS)

    @cached_property
    def _pairs(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(name.lower().split("+")) for name in self.drop if "+" in name)


def _pattern_of_names(names: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that matches any of these names in lower case. A `*` in a name matches any text."""
    patterns = [re.escape(name.lower()).replace(r"\*", ".*") for name in names if "+" not in name]
    return re.compile("|".join(patterns) or "(?!)")  # without names, it matches nothing


def _name(part: str) -> str:
    """Returns the name of a parameter, in lower case: of `;A=7`, `%3BA%3D7` and `A=7` it is `a`."""
    return _LEADING_SEMICOLON.sub("", part).replace("%3D", "=").partition("=")[0].lower()


def _inner_name(part: str) -> str:
    """Returns the name of a parameter inside a value, in lower case; "" if the parameter has no value."""
    name, *value = _INNER_EQUALS.split(part, maxsplit=1)
    for _ in range(INNER_ENCODINGS_MAX):
        name = unquote(name)
    return name.lower() if value else ""


DROP_NOTHING = Pages(drop=())
"""Drops nothing: only RFC 3986 decides which addresses are the same page."""
DEFAULT_PAGES = Pages()
"""The page rules of a `counters.py` without PAGES: they drop credentials."""


def declared_pages(counters: Mapping[str, object]) -> Pages:
    """Returns the PAGES that `counters.py` declares, or DEFAULT_PAGES. Raises ConfigurationError."""
    pages = counters.get("PAGES", DEFAULT_PAGES)
    if not isinstance(pages, Pages):
        raise ConfigurationError("counters.py: PAGES must be a Pages(…)")
    return pages
