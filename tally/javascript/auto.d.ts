import type { Tally } from "./tally.js";

/** The client of the elements that `<script type="module" src="…/client/auto.js">` has defined. */
export declare const tally: Tally;

/** Reads all numbers again. Call it when somebody signs in or out. */
export declare const refresh: () => void;
