"""Who is a crawler, by the User-Agent. The list is crawler-user-agents', which is kept up by its community.

Reading and compiling it takes about 45 ms: that is done when the first visit comes, not when functions start.
"""

from __future__ import annotations

from functools import lru_cache

AGENTS_KEPT_MAX = 1024  # a search through the list takes 0.4 ms, and most visitors share a few hundred browsers


@lru_cache(AGENTS_KEPT_MAX)
def is_crawler(user_agent: str) -> bool:
    """Whether a program sent this, not a person's browser. Every browser says what it is: nothing at all is a program.

    Crawlers that call themselves browsers are taken for them: they cannot be told by this.
    """
    if not user_agent:
        return True
    import crawleruseragents  # type: ignore[import-untyped]  # here: see above

    return bool(crawleruseragents.is_crawler(user_agent))
