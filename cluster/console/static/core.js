// Shared by all pages: requests, addresses in the fragment, and the formats of values.

import { html, render, useCallback, useContext, useEffect, useMemo, useRef, useState, createContext } from "./vendor/preact-htm.js";

export { html, render, useCallback, useContext, useEffect, useMemo, useRef, useState };

/** The session, and the query of the page's address: {session, query, setQuery}. */
export const Shell = createContext({});

const API = "/api/v1";

/** An error of the API: a sentence with the cause, and a remedy. */
export class ApiError extends Error {
  constructor(status, error, remedy) {
    super(error);
    this.status = status;
    this.remedy = remedy;
  }
}

/** Return the response of the API: {data, command}. Rejects with ApiError. */
export async function call(method, path, given = {}, signal = undefined) {
  const known = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = method === "POST" ? "" : `?${new URLSearchParams(known)}`;
  const options = { method, signal, headers: {} };
  if (method !== "GET") options.headers["X-RayMQ-Console"] = "1";
  if (method === "POST") {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(Object.fromEntries(known));
  }
  let response, body;
  try {
    response = await fetch(`${API}${path}${query.length > 1 ? query : ""}`, options);
    body = await response.json().catch(() => ({ error: `The console answered with status ${response.status}.`, remedy: "Shorten the values." }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The console does not respond.", "Start it again with `raymq console`.");
  }
  if (response.ok) return body;
  if (response.status === 401) dispatchEvent(new Event("login-required"));
  throw new ApiError(response.status, body.error, body.remedy);
}

/**
 * Request a resource, again every `everyMs` while the page is visible. Data stay while they are requested again.
 * Returns {data, command, error, reload}.
 */
export function useGet(path, given = {}, everyMs = 0) {
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  const key = path === null ? null : JSON.stringify([path, given]);
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    let timer;
    const load = async () => {
      try {
        if (!document.hidden || !everyMs) {
          const body = await call("GET", path, given, abort.signal);
          setState({ ...body, key });
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        setState((before) => ({ ...(before.key === key ? before : {}), error, key }));
      }
      if (everyMs && !abort.signal.aborted) timer = setTimeout(load, everyMs);
    };
    load();
    return () => { abort.abort(); clearTimeout(timer); };
  }, [key, everyMs, turn]);
  const reload = useCallback(() => setTurn((before) => before + 1), []);
  useEffect(() => {
    addEventListener("reload-page", reload);
    return () => removeEventListener("reload-page", reload);
  }, []);
  return { ...(state.key === key ? state : {}), reload };
}

// ---- addresses ---------------------------------------------------------------------------------------------

/** Return the address of a page, such as `#/topics/orders?tab=groups`. */
export function link(segments, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = String(new URLSearchParams(known));
  return `#/${segments.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Return {segments, query} of the present address. */
export function place() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const segments = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { segments, query: Object.fromEntries(new URLSearchParams(text)) };
}

/** Return the path of a resource below the API, with encoded names. */
export const path = (...segments) => `/${segments.map(encodeURIComponent).join("/")}`;

// ---- formats: what is unknown is a dash, never 0 -----------------------------------------------------------

export const DASH = "–";
const isUnknown = (value) => value === null || value === undefined || Number.isNaN(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** A count. Numbers that JavaScript cannot hold exactly arrive as texts. */
export const count = (value) => (isUnknown(value) ? DASH : typeof value === "string" ? value : whole.format(value));
export const rate = (value) => (isUnknown(value) ? DASH : value >= 100 ? whole.format(value) : tenth.format(value));
export const percent = (value) => (isUnknown(value) ? DASH : `${whole.format(value * 100)} %`);

/** A count in at most four characters and a unit: 12.4 k. */
export function short(value) {
  if (isUnknown(value)) return DASH;
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(value) >= size) return tenth.format(value / (unit === " k" ? 1e3 : size)) + unit;
  }
  return value < 100 ? tenth.format(value) : whole.format(value);
}

/** A duration in its two largest units: 3 d 4 h. */
export function span(ms) {
  if (isUnknown(ms)) return DASH;
  const units = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  let seconds = Math.floor(ms / 1000);
  if (seconds < 1) return "0 s";
  const at = units.findIndex(([size]) => seconds >= size);
  return units.slice(at, at + 2).map(([size, unit]) => {
    const number = Math.floor(seconds / size);
    seconds -= number * size;
    return number ? `${number} ${unit}` : "";
  }).filter(Boolean).join(" ");
}

/** A point in time in local time. */
export function time(ms) {
  if (isUnknown(ms)) return DASH;
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime())) return String(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** A size in bytes. */
export const bytes = (value) => (isUnknown(value) ? DASH : `${short(value)}${value < 1e4 ? " " : ""}B`);

/** Text of other users, with control, format and other invisible characters as \u{…}: they could mislead. */
export function plain(text, keepLines = false) {
  if (isUnknown(text)) return DASH;
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (each) => (
    keepLines && (each === "\n" || each === "\t") ? each : `\\u{${each.codePointAt(0).toString(16)}}`
  ));
}

/** Any value of a row of details. */
export function any(value) {
  if (isUnknown(value) || value === "") return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return count(value);
  if (Array.isArray(value)) return value.map(any).join(", ") || DASH;
  return plain(typeof value === "object" ? JSON.stringify(value) : value);
}
