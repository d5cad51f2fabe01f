export interface Signal<T> { value: T; peek(): T }
export interface ReadonlySignal<T> { readonly value: T; peek(): T }
export function signal<T>(value: T): Signal<T>;
export function computed<T>(from: () => T): ReadonlySignal<T>;
export function effect(task: () => void | (() => void)): () => void;
export function batch<T>(task: () => T): T;
export function useSignalEffect(task: () => void | (() => void)): void;
export function html(texts: TemplateStringsArray, ...values: unknown[]): any;
export function render(what: any, into: Element): void;
export function useEffect(task: () => void | (() => void), when?: unknown[]): void;
export function useRef<T>(value: T): { current: T };
export function useState<T>(value: T | (() => T)): [T, (value: T) => void];
