export function useState<T>(initial: T | (() => T)): [T, (next: T | ((old: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useRef<T>(initial: T): { current: T };
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
export function useCallback<T extends (...all: any[]) => any>(call: T, inputs: readonly unknown[]): T;
export function useReducer<S, A>(reduce: (state: S, action: A) => S, initial: S): [S, (action: A) => void];
export function useErrorBoundary(report?: (error: any) => void): [any, () => void];
