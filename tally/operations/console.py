"""The console: a page for people who look at the numbers. Its function has no access to the tables."""

from typing import Annotated, Literal, NotRequired, TypedDict

from tally.api import console
from tally.api.kinds import CONSOLE_FILE
from tally.api.operation import RATE_10_PER_S, Access, Answer, Call, Throttle, operation
from tally.api.texts import Text
from tally.errors import NotFoundError

TRY_IT_COUNTERS = {"plays", "stock"}  # the counters that *Try it* changes
FILE_THROTTLE = Throttle(rate_per_s=100, burst=400)  # the console loads a dozen files at once


class SignIn(TypedDict):
    """How people sign in. Only `pkce` has domain, client and `redirect`, the address to which the browser returns."""

    kind: Literal["pkce", "token", "name"]
    domain: NotRequired[str]
    client_id: NotRequired[str]
    redirect: NotRequired[str]


class Config(TypedDict):
    """The console's configuration. `counters`: the counters that anyone may read. `listed`: the counters whose ids
    anyone may list. `try_it`: whether to show *Try it*. `docs`: where Tally's docs are, a URL or `docs`."""

    stage: str
    stack: str
    region: str
    sign_in: SignIn
    try_it: bool
    docs: str
    counters: list[str]
    listed: list[str]


@operation(
    "GET /console",
    access=Access.ANYONE,
    throttle=RATE_10_PER_S,
    example="<!doctype html>",
    media_type="text/html",
    is_cacheable=True,
    takes_any_query=True,  # a page reads its own query, which may be the code of a sign-in
)
def get_console(call: Call) -> Answer[Text]:
    """The console

    A page for browsers. Because of its headers, the page loads and runs nothing from other sites.
    """
    return Answer(console.read_page(call.store.settings.console))


@operation(
    "GET /console/{file}",
    access=Access.ANYONE,
    throttle=FILE_THROTTLE,
    raises=[NotFoundError],
    example="export {};",
    media_type="text/*",
    is_cacheable=True,
)
def get_console_file(call: Call, *, file: Annotated[str, CONSOLE_FILE]) -> Answer[Text]:
    """A module or a style sheet of the console"""
    return Answer(console.read_file(file))


@operation(
    "GET /console/config.json",
    access=Access.ANYONE,
    throttle=RATE_10_PER_S,
    example={
        "stage": "prod",
        "stack": "Tally-prod",
        "region": "eu-west-1",
        "sign_in": {
            "kind": "pkce",
            "domain": "https://tally-prod-123456789012.auth.eu-west-1.amazoncognito.com",
            "client_id": "4h57kl2example",
            "redirect": "https://api.example.com/console",
        },
        "try_it": False,
        "docs": "https://git.example.com/tally/docs",
        "counters": ["plays", "likes", "visits"],
        "listed": ["plays"],
    },
)
def get_console_config(call: Call) -> Answer[Config]:
    """The console's configuration

    People sign in at the stack's user pool (`pkce`), with their own token (`token`), or in `make dev` with a name
    (`name`).
    """
    config = call.store.settings.console
    try_it = config["try_it"] and call.counters.keys() >= TRY_IT_COUNTERS
    public = [one for one in call.counters.values() if one.public]
    names = {"counters": [one.name for one in public], "listed": [one.name for one in public if one.listed]}
    return Answer({**config, "try_it": try_it, **names})
