/** Formats numbers and times for people. Times are in the viewer's zone; a button in the footer shows them in UTC. */

// On a system without a language, Chromium says `en-US@posix`, with which uPlot fails. uPlot loads after this module.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}

const NUMBER = new Intl.NumberFormat();
const SIGNED = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero" });
const SHORT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
// `hour`, `day`, `month`: spans. `hours`, `date`: the time of day and the day, as below a chart.
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
// JavaScript rounds numbers beyond 2^53, so a sign says that such a number is not exact.
const roundedSign = (value) => (Math.abs(value) > Number.MAX_SAFE_INTEGER ? "≈ " : "");
export const number = (value) => roundedSign(value) + NUMBER.format(value);
export const signed = (value) => roundedSign(value) + SIGNED.format(value);
export const short = (value) => SHORT.format(value);
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const sumOf = (points) => points.reduce((all, point) => all + point.value, 0);
export const inUtc = () => zone.utc;

/** Returns the name of the zone in which times are shown. */
export const zoneName = () => (zone.utc ? "UTC" : HERE);

/** Returns the zone for a series by the day: UTC if the viewer's offset has minutes, which the API refuses. */
export function dayZone() {
  return new Date().getTimezoneOffset() % 60 ? "UTC" : zoneName();
}

/** Returns a time as text. `at`: seconds since 1970. `style`: a name in STYLES. `timeZone`: default: the viewer's zone. */
export function timeText(at, style = "moment", timeZone = zoneName()) {
  return new Intl.DateTimeFormat(undefined, { ...STYLES[style], timeZone }).format(new Date(at * 1000));
}

/** Returns the time in UTC, as in ISO 8601. */
export const utc = (at) => new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";

/** Returns a `time` element: the time in the shown zone, and on hover in the other zone. */
export function time(at, style = "moment") {
  const element = document.createElement("time");
  element.dateTime = new Date(at * 1000).toISOString();
  element.dataset.style = style;
  return fill(element, at, style);
}

function fill(element, at, style) {
  element.textContent = timeText(at, style);
  element.title = zone.utc ? `${timeText(at, style, HERE)} (${HERE})` : utc(at);
  return element;
}

/** Shows every time, also on later pages, in UTC or in the viewer's zone. */
export function showIn(useUtc) {
  zone.utc = useUtc;
  for (const element of document.querySelectorAll("time[data-style]"))
    fill(element, Date.parse(element.dateTime) / 1000, element.dataset.style);
}
