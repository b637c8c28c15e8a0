import type { Requests } from "./requests.js";
import type { Problem } from "./tally.js";

/** Tally refused, or all attempts failed. If the error is `retryable`, the change may be counted. A second request with
 * the same key is safe. */
export class TallyError extends Error {
  readonly problem: Problem;
  readonly retryable: boolean;
}

export interface FunctionsOptions {
  /** The name or ARN of each function that you use: `{ increments: "arn:…:live" }`. The stack's outputs have them. */
  functions?: Readonly<Record<string, string>>;
  /** In place of `functions`, the prefix of all names: `tally-prod-` for `tally-prod-increments`. Empty: `make dev`. */
  prefix?: string;
  /** An alias or version, with `prefix`. */
  qualifier?: string;
  /** The default caller: a service's name, or a user's `sub`. */
  caller?: string;
  /** Your own `LambdaClient` of the AWS SDK. Default: a new client from the environment. */
  lambda?: { send(command: any): Promise<any> };
}

/** Invokes Tally's functions from other Lambda functions. Each operation has a method. A request is sent up to 6 times, with
 * one key.
 *
 * A method rejects with TallyError, with TypeError for a function without a name and for fields that JSON cannot hold, and
 * with the SDK's own error if Lambda refuses the call or there are no credentials. */
export interface TallyFunctions extends Requests {}
export class TallyFunctions {
  constructor(options?: FunctionsOptions);
}
