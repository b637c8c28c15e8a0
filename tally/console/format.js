/** Numbers and times for people. Times are in the viewer's zone; a switch in the footer shows them all in UTC. */

// Chromium on a system without a language says `en-US@posix`, which uPlot would not survive. It is loaded after this.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}

const NUMBER = new Intl.NumberFormat();
const SIGNED = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero" });
const SHORT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const STYLES = {
  moment: { dateStyle: "medium", timeStyle: "medium" },
  minute: { day: "numeric", month: "short", hour: "numeric", minute: "2-digit" },
  clock: { hour: "numeric", minute: "2-digit", second: "2-digit" },
  hour: { weekday: "short", day: "numeric", month: "short", hour: "numeric", minute: "2-digit" },
  day: { weekday: "short", day: "numeric", month: "short", year: "numeric" },
  hours: { hour: "numeric", minute: "2-digit" },
  date: { day: "numeric", month: "short" },
  month: { month: "long", year: "numeric" },
};
const zone = { utc: false };

export const HOUR_S = 3600;
export const DAY_S = 24 * HOUR_S;

export const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
// JSON has each number, and JavaScript rounds those beyond 2^53.
const about = (value) => (Math.abs(value) > Number.MAX_SAFE_INTEGER ? "≈ " : "");
export const number = (value) => about(value) + NUMBER.format(value);
export const signed = (value) => about(value) + SIGNED.format(value);
export const short = (value) => SHORT.format(value);
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const sumOf = (points) => points.reduce((all, point) => all + point.value, 0);
export const inUtc = () => zone.utc;

/** The zone in which times are shown now, by its name. */
export const zoneName = () => (zone.utc ? "UTC" : HERE);

/** The zone for days: series know no zone whose days begin within an hour of UTC. */
export function dayZone() {
  return new Date().getTimezoneOffset() % 60 ? "UTC" : zoneName();
}

/** A time as text. `at`: epoch seconds. `style`: a name in STYLES. `timeZone`: that of the viewer by default. */
export function timeText(at, style = "moment", timeZone = zoneName()) {
  return new Intl.DateTimeFormat(undefined, { ...STYLES[style], timeZone }).format(new Date(at * 1000));
}

/** The same time in UTC, as ISO 8601 has it. */
export const utc = (at) => new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";

/** A `time` element: the viewer's zone as text, UTC on hover. */
export function time(at, style = "moment") {
  const made = document.createElement("time");
  made.dateTime = new Date(at * 1000).toISOString();
  made.dataset.style = style;
  return shown(made, at, style);
}

function shown(made, at, style) {
  made.textContent = timeText(at, style);
  made.title = zone.utc ? `${timeText(at, style, HERE)} (${HERE})` : utc(at);
  return made;
}

/** Show every time on the page, and those that follow, in UTC or in the viewer's zone. */
export function showIn(useUtc) {
  zone.utc = useUtc;
  for (const made of document.querySelectorAll("time[data-style]"))
    shown(made, Date.parse(made.dateTime) / 1000, made.dataset.style);
}
