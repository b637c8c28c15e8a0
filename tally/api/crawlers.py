"""Recognises crawlers by their User-Agent, with the list of the project crawler-user-agents.

Reading and compiling the list takes about 45 ms. The first visit does it, not the start of every function.
"""

from __future__ import annotations

import re
from functools import lru_cache

AGENTS_KEPT_MAX = 1024  # a search takes 0.4 ms, and most visitors share a few hundred browsers
_BROWSER = re.compile(r"Mozilla/5\.0 \((?!compatible)[^()]*\) (AppleWebKit|Gecko)/")
# The list has them for what fetches previews and feeds, as `WhatsApp/2.23.20.0 A`. Behind a browser's own words they
# name the app in which a person sees the page. The last one is a build of Android, which many telephones have.
_APPS = re.compile(r"\b(WhatsApp|Viber|Feedly|NewsBlur|MetaIAB Facebook|AP3A\.240617\.008)\b")


@lru_cache(AGENTS_KEPT_MAX)
def is_crawler(user_agent: str) -> bool:
    """Whether a program sent this. An empty header means a program: every browser names itself.

    Crawlers that pretend to be browsers count as browsers, and so does the browser within an app.
    """
    if not user_agent:
        return True
    if _BROWSER.match(user_agent):
        user_agent = _APPS.sub("", user_agent)
    import crawleruseragents  # type: ignore[import-untyped]  # here, because it is slow

    return bool(crawleruseragents.is_crawler(user_agent))
