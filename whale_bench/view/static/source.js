// Where a page's data comes from. Both sources answer the same four questions:
//   runs()           [{name, title, …}] or null where there is one run only
//   overview()       what data.py calls an Overview, and sample: {shown, of}; while a server reads a large
//                    run, a Beginning
//   rows(query)      {total, rows}, rollouts, or examples where query.by is "example"
//   rollout(key)     what replay.py calls a Replay, or null
// A query is what index.py calls a Query: outcome, stop, group, text, example, sort, desc, offset, limit.

const solved = (row) => row.reward > 0.5;
const KEYS = { example: "example", solved: "reward", stop: "stop", turns: "turns", tokens: "tokens", seconds: "seconds" };

/** The data that stands in the page itself: gzip in base64, which no text of a rollout can end. */
export class EmbeddedSource {
  #data;
  static async read(base64) {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new EmbeddedSource(JSON.parse(await new Response(stream).text()));
  }
  constructor(data) { this.#data = data; }
  async runs() { return null; }
  async overview() { return { ...this.#data.overview, sample: this.#data.sample }; }
  async rollout(key) { return this.#data.replays.find((replay) => replay.key === key) ?? null; }
  async rows(query) {
    let found = this.#data.rows.filter((row) => matches(row, query));
    if (query.by === "example") found = byExample(found);
    const key = KEYS[query.sort];
    if (key && !(query.by === "example" && key === "stop")) {
      const field = query.by === "example" && key === "reward" ? "solved" : key;
      found = found.map((row, place) => [row, place]).sort(([a, i], [b, j]) => (query.desc ? -1 : 1) * compare(a[field], b[field]) || i - j).map(([row]) => row);
    } else if (query.desc) found.reverse();
    return { total: found.length, rows: found.slice(query.offset, query.offset + query.limit) };
  }
}

const compare = (a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);

function matches(row, { outcome, stop, group, text, example }) {
  if (outcome === "solved" && !solved(row)) return false;
  if (outcome === "failed" && solved(row)) return false;
  if (outcome === "truncated" && !row.truncated) return false;
  if (stop && row.stop !== stop) return false;
  if (example && row.example !== example) return false;
  if (group && !row.groups.some(([name, value]) => `${name}=${value}` === group)) return false;
  return !text || [row.key, row.task, row.answer, row.said].join("\n").toLowerCase().includes(text.toLowerCase());
}

function byExample(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.example)) found.set(row.example, []);
    found.get(row.example).push(row);
  }
  const mean = (list) => (list.length ? list.reduce((sum, value) => sum + value, 0) / list.length : null);
  return [...found].map(([example, list]) => ({
    example, rollouts: list.length, solved: list.filter(solved).length, task: list[0].task, first: list[0].key,
    turns: mean(list.map((row) => row.turns)), seconds: mean(list.map((row) => row.seconds)),
    tokens: mean(list.map((row) => row.tokens).filter((tokens) => tokens !== null)),
  }));
}

/** The data behind `whale-bench view --serve`, for the run of that name. */
export class RemoteSource {
  constructor(run) { this.run = run; }
  async #get(path, query = {}) {
    const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== false && value !== null && value !== undefined);
    const url = `/api/${path}${kept.length ? "?" + new URLSearchParams(kept) : ""}`;
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error ?? `${answer.status} ${url}`);
    return body;
  }
  async runs() { return (await this.#get("runs")).runs; }
  async progress() { return this.#get(`runs/${this.run}/progress`); }
  async overview() { return { ...(await this.#get(`runs/${this.run}/overview`)), sample: null }; }
  async rows(query) { return this.#get(`runs/${this.run}/${query.by === "example" ? "examples" : "rollouts"}`, { ...query, by: "" }); }
  async rollout(key) { return (await this.#get(`runs/${this.run}/rollout`, { key })).replay; }
}
