// What the console uses of the library. Templates are not checked, so elements need no types.
export type ComponentChild = any;
export function h(type: any, props?: any, ...children: any[]): any;
export function render(tree: any, into: Element): void;
export const Fragment: any;
export class Component<P = any, S = any> {
  constructor(props?: P);
  props: P;
  state: S;
  setState(next: Partial<S>): void;
}
