"""Tests in Chromium that each viewing (docs/browser.md) counts once, whatever a player does."""

from __future__ import annotations

import io
import secrets
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e import chromium
from tests.e2e.dev import ROOT, Dev
from tests.e2e.servers import Reply, Server

# `plays` a source from its start, `goesOn` with another source at the same second, and `ends` by a seek to the end.
# `watch` lets the player play for 0.7 s, in which the element gets events of the player.
PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>t</title><link rel=icon href=data:,>
<div id=box><audio id=player muted></audio></div><tally-plays of=%(film)s for=player></tally-plays><script type=module>
import { Tally } from "%(api)s/client/tally.js"; import { define } from "%(api)s/client/elements.js";
window.tally = new Tally(); define(tally);
window.player = document.getElementById("player");
window.watch = () => new Promise((done) => setTimeout(done, 700));
window.plays = async (src) => { player.src = src; await player.play(); await watch() };
window.goesOn = async (src) => { const at = player.currentTime; player.src = src;
  await new Promise((done) => player.addEventListener("loadedmetadata", done, { once: true }));
  player.currentTime = at; await player.play(); await watch() };
window.ends = async () => { const over = new Promise((done) => player.addEventListener("ended", done, { once: true }));
  player.currentTime = player.duration - .2; await over; await new Promise((done) => setTimeout(done, 100)) };
window.blob = async () => URL.createObjectURL(await (await fetch("/film.wav")).blob());
</script>"""
# What a player does: (how many viewings that is, the calls). A film has 20 s. An advertisement or a track has 2 s.
CASES = {
    "one play": (1, "await plays('/film.wav')"),
    "pauses and seeks": (
        1, "await plays('/film.wav'); player.pause(); player.currentTime = 9; await player.play(); await watch()",
    ),
    "another quality": (1, "await plays('/film.wav'); await goesOn('/film-480.wav'); await goesOn('/film.wav')"),
    "a signature that expired": (1, "await plays('/film.wav?sig=1'); await goesOn('/film.wav?sig=2')"),
    "a stream that is attached again": (1, "await plays(await blob()); await goesOn(await blob())"),
    "an advertisement before the film": (1, "await plays('/ad.wav'); await ends(); await plays('/film.wav')"),
    "a skipped advertisement before the film": (1, "await plays('/ad.wav'); await plays('/film.wav')"),
    "an advertisement before the film and twice in it": (
        1,
        "await plays('/ad.wav'); await ends(); await plays('/film.wav'); await plays('/ad.wav'); await ends();"
        " await goesOn('/film.wav'); await plays('/ad.wav'); await ends(); await goesOn('/film.wav')",
    ),
    "an advertisement after the film": (
        1, "await plays('/film.wav'); await ends(); await plays('/ad.wav'); await ends()",
    ),
    "the same advertisement before and after the film, and twice in a row": (
        1,
        "await plays('/ad.wav'); await ends(); await plays('/film.wav'); await plays('/ad.wav'); await ends();"
        " await plays('/ad.wav'); await ends(); await goesOn('/film.wav'); await ends(); await plays('/ad.wav');"
        " await ends()",
    ),
    "a loop": (1, "player.loop = true; await plays('/ad.wav'); player.currentTime = 1.8; await watch(); await watch()"),
    "back to a scene after the end": (
        1, "await plays('/film.wav'); await ends(); player.currentTime = 9; await player.play(); await watch()",
    ),
    "the film again from its beginning, after the end": (
        2, "await plays('/film.wav'); await ends(); await player.play(); await watch()",
    ),
    "the film again, in a quality that the first viewing had": (
        2,
        "await plays('/film-480.wav'); await goesOn('/film.wav'); await ends(); await plays('/film-480.wav')",
    ),
    "the film again, with another signature": (
        2, "await plays('/film.wav?sig=1'); await ends(); await plays('/film.wav?sig=2')",
    ),
    "the film again, with its advertisement": (
        2,
        "for (let n = 0; n < 2; n++) { await plays('/ad.wav'); await ends(); await plays('/film.wav'); await ends() }",
    ),
    "an album, one track after the other": (1, "for (const n of [1, 2, 3]) { await plays(`/${n}.wav`); await ends() }"),
    "a box that took the id, as video.js does": (
        1, "box.id = 'player'; player.id = 'player_html5_api'; await plays('/film.wav')",
    ),
}  # fmt: skip


FRAME, FRAME_S = b"\xff\xfb\x10\xc0" + bytes(100), 1152 / 44100
"""Silence as MPEG-1 layer III: 32 kbit/s, 44.1 kHz, one channel. An HLS segment may have such frames: RFC 8216, 3.4."""
FRAMES, SEGMENTS = 77, 10  # the frames of a segment last two seconds
# The playlist of the stream, with two qualities (hls.js: levels).
LEVELS = "".join(f'#EXT-X-STREAM-INF:BANDWIDTH={rate},CODECS="mp4a.40.34"\n{rate}.m3u8\n' for rate in (32000, 64000))
PLAYERS = {"/video.js": "video.js/dist/video.min.js", "/hls.js": "hls.js/dist/hls.min.js"}


def sound(seconds: int) -> bytes:
    """Returns silence as a WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x80" * 8000 * seconds)
    return out.getvalue()


def segment(number: int) -> bytes:
    """Returns a segment of the stream. Its tag says when it begins, in units of MPEG: 90,000 a second."""
    begins = int(number * FRAMES * FRAME_S * 90_000).to_bytes(8, "big")
    owner = b"com.apple.streaming.transportStreamTimestamp\0" + begins
    tag = b"PRIV" + len(owner).to_bytes(4, "big") + b"\0\0" + owner
    return b"ID3\x04\0\0\0\0\0" + bytes([len(tag)]) + tag + FRAME * FRAMES


def playlist(rate: str) -> str:
    """Returns the playlist of a quality."""
    length = f"#EXTINF:{FRAMES * FRAME_S:.5f},"
    lines = [line for number in range(SEGMENTS) for line in (length, f"{rate}-{number}.mp3")]
    return "\n".join(["#EXTM3U", "#EXT-X-TARGETDURATION:3", "#EXT-X-PLAYLIST-TYPE:VOD", *lines, "#EXT-X-ENDLIST"])


FILM, ADVERTISEMENT = sound(20), sound(2)


def site_of(film: str, api: str) -> Server:
    """Returns a server with a page that plays, sounds, a stream, and the players of npm packages."""

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        path = target.partition("?")[0]
        name, _, extension = path[1:].rpartition(".")
        if path in PLAYERS:
            return Reply(200, (ROOT / "node_modules" / PLAYERS[path]).read_bytes(), {"content-type": "text/javascript"})
        if extension == "m3u8":
            lines = f"#EXTM3U\n{LEVELS}" if name == "film" else playlist(name)
            return Reply(200, lines.encode(), {"content-type": "application/vnd.apple.mpegurl"})
        if extension == "mp3":
            return Reply(200, segment(int(name.rpartition("-")[2])), {"content-type": "audio/mpeg"})
        if extension == "wav":  # players seek by ranges
            whole = FILM if name.startswith("film") else ADVERTISEMENT
            first = int(headers.get("range", "bytes=0-")[6:].split("-")[0])
            content_range = f"bytes {first}-{len(whole) - 1}/{len(whole)}"
            ranges = {"content-type": "audio/wav", "accept-ranges": "bytes", "content-range": content_range}
            return Reply(206, whole[first:], ranges)
        return Reply(200, (PAGE % {"film": film, "api": api}).encode(), {"content-type": "text/html"})

    return Server(answer)


@dataclass
class Cinema:
    """A page with a player. `film`: the id that counts. `warnings`: the lines of the console, and errors."""

    dev: Dev
    page: Page
    film: str
    warnings: list[str] = field(default_factory=list)

    def run(self, script: str) -> None:
        """Runs a script, and waits until no change waits."""
        program = f"(async () => {{ player.muted = true; {script} }})()"
        self.page.evaluate(
            f"window.ended = ''; {program}.then(() => (ended = 'well'), (error) => (ended = String(error))); 0"
        )
        self.page.wait_for_function("ended")
        assert self.page.evaluate("ended") == "well"
        self.page.wait_for_function("!tally.waiting().length")

    def plays(self) -> int:
        """Returns how many viewings of the film are counted."""
        return self.dev.plays(self.film)


@pytest.fixture
def cinema(browser: Browser, dev: Dev) -> Iterator[Cinema]:
    film = secrets.token_hex(4)
    site = site_of(film, dev.url)
    with site.running(), chromium.new_context(browser) as context:
        made = Cinema(dev, context.new_page(), film)
        made.page.on("console", lambda line: made.warnings.append(line.text))
        made.page.on("pageerror", lambda error: made.warnings.append(str(error)))
        made.page.goto(site.origin)
        made.page.wait_for_function("window.blob")
        yield made


@pytest.mark.parametrize(("plays", "script"), CASES.values(), ids=CASES)
def test_each_viewing_counts_once(plays: int, script: str, cinema: Cinema) -> None:
    cinema.run(script)
    expect(cinema.page.locator("tally-plays [part=count]")).to_have_text(str(plays))
    assert cinema.plays() == plays
    assert cinema.warnings == []


def test_a_viewing_in_video_js_counts_once(cinema: Cinema) -> None:
    """video.js gives the id of the player to a box around the player. The second source is another quality."""
    cinema.page.add_script_tag(url="/video.js")
    source = "{ src: '/film%s.wav', type: 'audio/wav' }"
    cinema.run(
        f"""window.video = videojs('player', {{ muted: true, sources: [{source % ""}] }});
        const loads = () => new Promise((done) => video.one('loadedmetadata', done));
        await loads(); await video.play(); await watch(); const at = video.currentTime();
        const loaded = loads(); video.src({source % "-480"}); await loaded;
        video.currentTime(at); await video.play(); await watch()"""
    )
    shown = cinema.page.evaluate("[document.getElementById('player').tagName, video.currentSrc()]")
    assert shown == ["DIV", "/film-480.wav"]
    assert cinema.plays() == 1
    cinema.run(
        """const over = new Promise((done) => video.one('ended', done)); video.currentTime(video.duration() - .2);
        await over; await video.play(); await watch()"""
    )
    assert cinema.plays() == 2
    assert [line for line in cinema.warnings if "tally" in line] == []


def test_a_viewing_of_a_stream_in_hls_js_counts_once(cinema: Cinema) -> None:
    """The quality changes, the player recovers from an error, and the playlist gets another signature."""
    cinema.page.add_script_tag(url="/hls.js")
    cinema.run(
        """window.plays = async (sig, startPosition) => {
            window.hls?.destroy(); window.hls = new Hls({ startPosition });
            hls.loadSource(`/film.m3u8?sig=${sig}`); hls.attachMedia(player); await player.play(); await watch() };
        window.sources = new Set();
        const level = (to) => new Promise((done) => {
          hls.on(Hls.Events.LEVEL_SWITCHED, done); hls.currentLevel = to });
        await plays(1, 0); sources.add(player.currentSrc);
        await level(hls.currentLevel ? 0 : 1); await watch();
        hls.recoverMediaError(); await player.play(); await watch(); sources.add(player.currentSrc);
        await plays(2, player.currentTime); sources.add(player.currentSrc)"""
    )
    assert cinema.page.evaluate("[sources.size, player.currentTime > 1]") == [3, True]  # each step made a source
    assert cinema.plays() == 1
    cinema.run("await ends(); await player.play(); await watch()")
    assert cinema.plays() == 2
    assert cinema.warnings == []


def test_seconds_of_an_advertisement_do_not_count_for_the_film(cinema: Cinema) -> None:
    """A custom element can be a player. `says` sends the events that report its source and its seconds."""
    cinema.page.evaluate("""window.says = (currentSrc, ...seconds) => {
        for (const currentTime of seconds) {
          Object.assign(own, { currentSrc, currentTime, duration: 20, readyState: 4, paused: false });
          own.dispatchEvent(new Event("timeupdate"));
        } }""")
    cinema.run("""box.innerHTML = "<own-player id=own></own-player>";
        const plays = document.querySelector("tally-plays");
        plays.setAttribute("for", "own"); plays.setAttribute("after", 3);
        says("/ad", 0, 1, 2, 2.5); says("/film", 0, 1, 2)""")
    assert cinema.plays() == 0
    cinema.run("says('/film', 10, 10.8)")  # 2.8 s of 3: a skipped part is not watched
    assert cinema.plays() == 0
    cinema.run("says('/film', 11); says('/film-480', 11, 12, 13)")
    assert cinema.plays() == 1


def test_elements_warn_of_a_missing_player(cinema: Cinema) -> None:
    cinema.run("player.id = 'other'; await plays('/film.wav'); await watch()")
    assert cinema.warnings == ['tally: <tally-plays for="player">: the page has no such element.']
    assert cinema.plays() == 0
