// Calls of the API, with the token of whoever is signed in.

import { forget, token } from "/console/signin.js";

/** An answer that is no success: `status`, and `problem`, its problem document or API Gateway's `{"message"}`. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || problem.message || `The API answered ${status}.`);
    Object.assign(this, { status, problem });
  }
}

/** The JSON that a GET of `path` answers. Throws ApiError, and TypeError where the connection is lost. */
export async function get(path, { signal } = {}) {
  const held = token();
  const response = await fetch(path, { signal, headers: held ? { authorization: `Bearer ${held}` } : {} });
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) forget();
  if (!response.ok) throw new ApiError(response.status, body);
  return body;
}
