export default class uPlot {
  constructor(options: any, data: (number | null)[][], into: HTMLElement);
  setData(data: (number | null)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
