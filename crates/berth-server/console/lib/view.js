// The view library in one place: templates, components, hooks, and how a component follows the store.

import { Fragment, h, render } from "../vendor/preact.js";
import { useEffect, useReducer, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";
import { store } from "./store.js";

export { Fragment, render };
export { useCallback, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";

/** Templates. What is put into them is text, never markup. */
export const html = htm.bind(h);

/**
 * Renders a component again when one of these topics of the store changes.
 * @param {...string} topics
 */
export function useTopics(...topics) {
  const [, again] = useReducer((/** @type {number} */ n) => n + 1, 0);
  const key = topics.join(" ");
  useEffect(() => {
    const ends = topics.map((topic) => store.subscribe(topic, () => again(undefined)));
    return () => ends.forEach((end) => end());
  }, [key]);
}

/**
 * The same at most once in so many milliseconds, for what looks at every node.
 * @param {number} everyMs @param {...string} topics
 */
export function useSlowTopics(everyMs, ...topics) {
  const [, again] = useReducer((/** @type {number} */ n) => n + 1, 0);
  useEffect(() => {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        again(undefined);
      }, everyMs);
    };
    const ends = topics.map((topic) => store.subscribe(topic, soon));
    return () => {
      ends.forEach((end) => end());
      clearTimeout(timer);
    };
  }, [topics.join(" ")]);
}

/**
 * What a request answers: `{ data, error, loading, reload }`. It is made again when an input changes
 * and, if `topics` are given, at most once in `everyMs` when one of them changes.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} request
 * @param {readonly unknown[]} inputs
 * @param {{ topics?: string[], everyMs?: number }} [options]
 * @returns {{ data: T | undefined, error: any, loading: boolean, reload: () => void }}
 */
export function useRequest(request, inputs, options = {}) {
  const [state, setState] = useState(
    /** @type {{ data: any, error: any, loading: boolean }} */ ({ data: undefined, error: undefined, loading: true }),
  );
  const [round, next] = useReducer((/** @type {number} */ n) => n + 1, 0);
  const last = useRef(/** @type {unknown[] | undefined} */ (undefined));
  useEffect(() => {
    const abort = new AbortController();
    // Another object: what is shown of the last one would be wrong.
    const changed = last.current === undefined || inputs.some((input, i) => input !== last.current?.[i]);
    last.current = [...inputs];
    setState((old) => ({ data: changed ? undefined : old.data, error: undefined, loading: true }));
    request(abort.signal).then(
      (data) => abort.signal.aborted || setState({ data, error: undefined, loading: false }),
      (error) => abort.signal.aborted || setState((old) => ({ data: old.data, error, loading: false })),
    );
    return () => abort.abort();
  }, [...inputs, round]);
  useEffect(() => {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        next(undefined);
      }, options.everyMs ?? 1500);
    };
    const ends = (options.topics ?? []).map((topic) => store.subscribe(topic, soon));
    return () => {
      ends.forEach((end) => end());
      clearTimeout(timer);
    };
  }, [...inputs]);
  return { ...state, reload: () => next(undefined) };
}
