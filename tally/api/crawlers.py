"""Recognises crawlers by their User-Agent, with the list of the project crawler-user-agents.

To read and compile the list takes about 45 ms, so the first visit does it, and not the start of every function.
"""

from __future__ import annotations

import re
from functools import lru_cache

AGENTS_KEPT_MAX = 1024  # a search takes 0.4 ms, and most visitors share a few hundred browsers
_BROWSER = re.compile(r"Mozilla/5\.0 \((?!compatible)[^()]*\) (AppleWebKit|Gecko)/")
# The list has these names because the apps fetch previews and feeds, like `WhatsApp/2.23.20.0 A`. If a browser's words
# are before the name, a person sees the page in the app. The last name is a build of Android, which many phones have.
_APPS = re.compile(r"\b(WhatsApp|Viber|Feedly|NewsBlur|MetaIAB Facebook|AP3A\.240617\.008)\b")


@lru_cache(AGENTS_KEPT_MAX)
def is_crawler(user_agent: str) -> bool:
    """Returns whether a crawler sent this header. An empty header is a crawler's, because every browser names itself. A
    crawler that pretends to be a browser counts as a browser, and so does the browser within an app."""
    if not user_agent:
        return True
    if _BROWSER.match(user_agent):
        user_agent = _APPS.sub("", user_agent)
    import crawleruseragents  # type: ignore[import-untyped]  # here, because the import is slow

    return bool(crawleruseragents.is_crawler(user_agent))
