// RSP.js (rsp-js, its window, its operator of queries) over a stream in a file: what a boundary of a window takes.
//
// What: reads lines `ts<TAB>s<TAB>p<TAB>o` (microseconds, IRIs, in order of time), adds each triple to the window, and where the
// window closes at a boundary that is asked for runs the query on its content. Prints a line of JSON for each: the
// boundary, rows, seconds for the triples since the boundary before, seconds for the query.
// Why the operators and not `RSPEngine`: it moves the origin of the window by a slide for every row of an answer, after which
// triples are in other windows. Its log, a line for each triple and window, is off.
// A window of RSP.js holds times in [close - width, close), one of ours (close - width, close]: times are a microsecond less.
//
//     node rsp_window.js FILE QUERY WIDTH_S BOUNDARY_S ...

const { createInterface } = require("readline");
const { createReadStream, readFileSync } = require("fs");
const { DataFactory } = require("n3");
const { RSPQLParser } = require("rsp-js/dist/rspql.js");
const { CSPARQLWindow, ReportStrategy, Tick } = require("rsp-js/dist/operators/s2r.js");
const { R2ROperator } = require("rsp-js/dist/operators/r2r.js");

console.debug = console.log = () => {};

function since(start) {
  return Number(process.hrtime.bigint() - start) / 1e9;
}

async function countedRows(operator, content) {
  const bindings = await operator.execute(content);
  return new Promise((resolve, reject) => {
    let rows = 0;
    bindings.on("data", () => (rows += 1));
    bindings.on("error", reject);
    bindings.on("end", () => resolve(rows));
  });
}

async function main() {
  const [file, query, width, ...boundaries] = process.argv.slice(2);
  const wanted = new Set(boundaries.map((second) => Number(second) * 1e6));
  const parsed = new RSPQLParser().parse(readFileSync(query, "utf8"));
  const [{ window_name: name, width: range, slide }] = parsed.s2r;
  if (range !== Number(width) * 1e6) throw new Error(`the query has a window of ${range} us`);
  const window = new CSPARQLWindow(name, range, slide, ReportStrategy.OnWindowClose, Tick.TimeDriven, 0, { info() {} });
  window.time = -1; // the first time that may come
  const operator = new R2ROperator(parsed.sparql);
  const graph = DataFactory.namedNode(name);
  let closed = null;
  window.subscribe("RStream", (content) => (closed = content));
  let start = process.hrtime.bigint();
  for await (const line of createInterface({ input: createReadStream(file) })) {
    const [ts, ...terms] = line.split("\t");
    window.add(DataFactory.quad(...terms.map((iri) => DataFactory.namedNode(iri)), graph), Number(ts) - 1);
    if (closed === null) continue;
    const content = closed;
    const added = since(start);
    const boundary = Math.floor((Number(ts) - 1) / slide) * slide; // the last one that is passed
    closed = null;
    if (wanted.has(boundary)) {
      start = process.hrtime.bigint();
      const rows = await countedRows(operator, content);
      const report = { boundary_s: boundary / 1e6, triples: content.len(), rows, added_s: added, query_s: since(start) };
      process.stdout.write(JSON.stringify(report) + "\n");
    }
    start = process.hrtime.bigint();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
