// The page of an embedded cluster. What it shows arrives as server-sent events; what it does are requests to /control.
// Texts go into the page as text, never as markup, and with control characters visible.

const byId = (id) => document.getElementById(id);
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const CHART_SECONDS = 120;
const MOST_CELLS = 4096;
const MOST_LINES = 200;
const NOBODY = -1;

const state = { cluster: {}, nodes: [], owners: [], seqnos: [], connections: { shown: [] }, faults: [] };

// Texts and elements.

function printable(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function setText(target, text) {
  const shown = printable(text);
  if (target.textContent !== shown) target.textContent = shown;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; unit += 1) count /= 1000;
  return `${count.toFixed(unit && count < 100 ? 1 : 0)} ${units[unit]}`;
}

// Keeps the children of an element in step with items, in place, so that the focus stays where it is.
function sync(parent, items, keyOf, create, update) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let child = present.get(key);
    present.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    update(child, item);
  });
  present.forEach((child) => child.remove());
}

// Rates: from the totals of two events, which are `seconds` apart.

const totals = new Map();

function rate(key, total, seconds) {
  const before = totals.get(key) ?? total;
  totals.set(key, total);
  return seconds > 0 ? Math.max(0, total - before) / seconds : 0;
}

// Requests.

async function operate(name, members) {
  const shown = `${name} ${JSON.stringify(members)}`;
  try {
    const response = await fetch(`control/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(members),
    });
    const answer = await response.json();
    if (!response.ok) return report(answer.error, "bad");
    const result = answer.result === null ? "done" : JSON.stringify(answer.result, null, 1);
    report(`${shown}: ${result.length > 4000 ? `${result.slice(0, 4000)} …` : result}`, "good");
  } catch (error) {
    report(`${shown}: no answer (${error.message})`, "bad");
  }
}

function report(text, kind) {
  const target = byId("result");
  // A result has lines; everything else that is not printable is shown as such.
  target.textContent = text.split("\n").map(printable).join("\n");
  target.dataset.state = kind;
}

// Nodes.

const NODE_ACTIONS = {
  failover: ["up", "down"],
  crash: ["up"],
  recover: ["down", "out"],
  restart: ["up"],
  rebalance_out: ["up"],
};
const COLUMNS = ["state", "port", "active", "replicas", "streams", "items", "bytes_sent"];

function nodeRow(node) {
  const buttons = Object.keys(NODE_ACTIONS).map((name) =>
    element(
      "button",
      {
        type: "button",
        "data-operation": name,
        "aria-label": `${name.replace("_", " ")} node ${node.number}`,
        onclick: () => operate(name, { node: node.number }),
      },
      name.replace("_", " "),
    ),
  );
  const cells = COLUMNS.map((name) => element("td", { "data-column": name, class: name === "state" ? "left" : null }));
  return element("tr", {}, element("th", { scope: "row" }, String(node.number)), ...cells, element("td", { class: "left actions" }, ...buttons));
}

function showNodes(seconds) {
  sync(byId("nodes"), state.nodes, (node) => node.number, nodeRow, (row, node) => {
    for (const cell of row.querySelectorAll("td[data-column]")) {
      const name = cell.dataset.column;
      const value = node[name];
      if (name === "items") setText(cell, numbers.format(rate(`n${node.number}i`, value, seconds)));
      else if (name === "bytes_sent") setText(cell, bytes(rate(`n${node.number}b`, value, seconds)));
      else setText(cell, name === "state" && !node.persists ? `${value}, not persisting` : value);
    }
    for (const button of row.querySelectorAll("button")) {
      button.hidden = !NODE_ACTIONS[button.dataset.operation].includes(node.state);
    }
  });
  for (const select of document.querySelectorAll("select[data-nodes]")) fillNodes(select);
  sync(
    byId("legend"),
    [...state.nodes.filter((node) => node.state !== "out").map((node) => node.number), NOBODY],
    (number) => number,
    (number) => element("li", { class: number === NOBODY ? "none" : `n${number % 8}` }),
    (item, number) => setText(item, number === NOBODY ? "– no owner" : `${number}: ${state.nodes[number].active} active`),
  );
}

function fillNodes(select) {
  sync(
    select,
    [...(select.required ? [] : [null]), ...state.nodes.map((node) => node.number)],
    (number) => number ?? "",
    (number) => element("option", { value: number ?? "" }),
    (option, number) => setText(option, number === null ? "" : `${number} (${state.nodes[number].state})`),
  );
}

// Vbuckets.

let current = 0;

function describeVbucket(number) {
  const [owner, ...replicas] = state.owners[number] ?? [];
  if (owner === undefined) return `vbucket ${number}`;
  const node = state.nodes[owner];
  const where = owner === NOBODY ? "no owner" : `active on node ${owner}${node?.state === "up" ? "" : ", which is down"}`;
  const copies = replicas.map((replica) => (replica === NOBODY ? "none" : replica)).join(", ");
  return `vbucket ${number}: ${where}; high seqno ${state.seqnos[number] ?? 0}${copies ? `; replica on ${copies}` : ""}`;
}

function makeGrid() {
  const count = Math.min(state.cluster.vbuckets, MOST_CELLS);
  const grid = byId("grid");
  if (grid.children.length === count) return;
  const cells = Array.from({ length: count }, (_, number) =>
    element("button", { type: "button", tabindex: number ? -1 : 0, "data-number": number }),
  );
  grid.replaceChildren(...cells);
  const rest = state.cluster.vbuckets - count;
  setText(byId("grid-rest"), rest ? `The last ${numbers.format(rest)} vbuckets are not drawn.` : "");
}

function showVbuckets(changed) {
  const cells = byId("grid").children;
  const highest = Math.log2(2 + state.seqnos.reduce((most, seqno) => Math.max(most, seqno), 0));
  for (const number of changed) {
    const cell = cells[number];
    if (!cell) continue;
    const owner = state.owners[number]?.[0] ?? NOBODY;
    const seqno = state.seqnos[number] ?? 0;
    const level = seqno ? 1 + Math.min(3, Math.floor((3.99 * Math.log2(1 + seqno)) / highest)) : 0;
    const kind = owner === NOBODY ? "none" : state.nodes[owner]?.state === "up" ? "active" : "down";
    cell.className = owner === NOBODY ? "" : `n${owner % 8} h${level}`;
    cell.dataset.state = kind;
    setText(cell, { none: "–", down: `${owner}!`, active: owner }[kind]);
    cell.setAttribute("aria-label", describeVbucket(number));
    cell.title = describeVbucket(number);
  }
  if (document.activeElement?.parentElement === byId("grid")) setText(byId("vbucket"), describeVbucket(current));
}

function moveTo(number) {
  const cells = byId("grid").children;
  if (!cells[number]) return;
  cells[current].tabIndex = -1;
  current = number;
  cells[current].tabIndex = 0;
  cells[current].focus();
}

byId("grid").addEventListener("focusin", (event) => {
  const cells = byId("grid").children;
  cells[current].tabIndex = -1;
  current = Number(event.target.dataset.number);
  cells[current].tabIndex = 0;
  setText(byId("vbucket"), describeVbucket(current));
});

byId("grid").addEventListener("keydown", (event) => {
  const cells = [...byId("grid").children];
  const width = cells.findIndex((cell) => cell.offsetTop !== cells[0].offsetTop);
  const row = width < 0 ? cells.length : width;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -current, End: cells.length - 1 - current };
  if (!(event.key in steps)) return;
  event.preventDefault();
  moveTo(current + steps[event.key]);
});

// Connections of consumers.

const FACTS = ["window", "unacknowledged", "streams", "behind", "items/s", "sent/s", "user", "agreed"];

function consumerBox(connection) {
  const facts = FACTS.map((name) => element("div", {}, element("dt", {}, name), element("dd", { "data-fact": name })));
  const head = ["vbucket", "stream id", "seqno", "end", "behind"].map((name) => element("th", { scope: "col" }, name));
  return element(
    "details",
    { class: "consumer" },
    element("summary"),
    element("dl", {}, ...facts),
    element(
      "div",
      { class: "scroll", role: "region", tabindex: 0, "aria-label": `streams of connection ${connection.number}` },
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody")),
    ),
    element("p", { class: "note" }),
  );
}

function showConsumers(seconds) {
  const { count, shown } = state.connections;
  setText(byId("consumers-count"), shown.length < count ? `${shown.length} of ${numbers.format(count)} shown` : count);
  sync(byId("consumers"), shown, (one) => one.number, consumerBox, (box, one) => {
    const facts = {
      window: one.window ? bytes(one.window) : "no flow control",
      unacknowledged: bytes(one.unacknowledged),
      streams: numbers.format(one.streams),
      behind: `${numbers.format(one.behind)} seqnos`,
      "items/s": numbers.format(rate(`c${one.number}i`, one.items, seconds)),
      "sent/s": bytes(rate(`c${one.number}b`, one.bytes, seconds)),
      user: one.user || "–",
      agreed: [one.dialect, one.encrypted ? "TLS" : null, ...one.agreed].filter(Boolean).join(", "),
    };
    const line = `${one.name || "(no name)"} on node ${one.node}`;
    setText(box.querySelector("summary"), `${line}: ${facts["items/s"]} items/s, ${facts.unacknowledged} unacknowledged, ${facts.streams} streams`);
    for (const cell of box.querySelectorAll("dd")) setText(cell, facts[cell.dataset.fact]);
    // What is folded in needs no drawing.
    if (!box.open) return;
    sync(
      box.querySelector("tbody"),
      one.shown,
      (stream) => `${stream.vbucket} ${stream.stream_id}`,
      () => element("tr", {}, ...Array.from({ length: 5 }, () => element("td"))),
      (row, stream) => {
        const cells = [stream.vbucket, stream.stream_id ?? "", stream.seqno, stream.end ?? "∞", stream.behind];
        cells.forEach((value, index) => setText(row.children[index], value));
      },
    );
    const rest = one.streams - one.shown.length;
    setText(box.querySelector("p"), rest > 0 ? `Those furthest behind; ${numbers.format(rest)} others are not listed.` : "");
  });
}

// Collections, faults and the log.

function showCollections({ count, shown, empty_scopes: empty }) {
  setText(byId("collections-count"), shown.length < count ? `${shown.length} of ${numbers.format(count)} shown` : count);
  const lines = shown.map(({ path, id, max_ttl: ttl }) => [path, `${path} (id 0x${id.toString(16)}${ttl === null ? "" : `, at most ${ttl} s`})`]);
  const scopes = empty.map((name) => [`${name}.`, `${name}: a scope without collections`]);
  sync(byId("collections"), [...lines, ...scopes], ([key]) => key, () => element("li"), (item, [, text]) => setText(item, text));
  sync(byId("collection-names"), lines, ([key]) => key, ([key]) => element("option", { value: key }), () => {});
}

function describeFault({ name, options, hits }) {
  const given = Object.entries(options).map(([key, value]) => `${key}=${value}`);
  return `${[name, ...given].join(" ")}: ${numbers.format(hits)} hits`;
}

function showFaults() {
  sync(
    byId("faults"),
    state.faults,
    (fault) => fault.number,
    ({ number, name }) =>
      element(
        "li",
        {},
        element("span"),
        element(
          "button",
          { type: "button", "aria-label": `clear ${name}`, onclick: () => operate("clear_fault", { number }) },
          "clear",
        ),
      ),
    (item, fault) => setText(item.firstChild, describeFault(fault)),
  );
}

function addToLog(time, text) {
  const at = new Date(time * 1000);
  const line = element("li", {}, element("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")));
  line.append(printable(text));
  byId("log").prepend(line);
  while (byId("log").children.length > MOST_LINES) byId("log").lastChild.remove();
}

let lastLogged = 0;
let known = null;

function showLog(events) {
  for (const { number, time, text } of events) {
    if (number > lastLogged) addToLog(time, text);
    lastLogged = Math.max(lastLogged, number);
  }
}

function logConsumers(time) {
  const now = new Map(state.connections.shown.map((one) => [one.number, `${one.name} on node ${one.node}`]));
  if (known) {
    now.forEach((name, number) => known.has(number) || addToLog(time, `connected: ${name}`));
    known.forEach((name, number) => now.has(number) || addToLog(time, `disconnected: ${name}`));
  }
  known = now;
}

// Chart.

const points = [];

function addPoint(perSecond) {
  const now = performance.now() / 1000;
  points.push([now, perSecond]);
  while (points.length && points[0][0] < now - CHART_SECONDS - 5) points.shift();
  const most = Math.max(10, ...points.map(([, value]) => value));
  const places = points.map(([at, value]) => [600 - ((now - at) / CHART_SECONDS) * 600, 100 - (value / most) * 100]);
  const line = places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
  byId("line").setAttribute("d", `M${line}`);
  byId("area").setAttribute("d", `M${places[0][0].toFixed(1)},100 L${line} L600,100 Z`);
  setText(byId("most"), numbers.format(most));
  setText(byId("rate"), numbers.format(perSecond));
}

// Forms, made of the descriptions that the cluster gives.

function field(name, input, { required = false, about = "" } = {}) {
  input.name = name;
  if (input.type !== "checkbox") input.required = required;
  return element("label", {}, name, input, element("small", {}, about));
}

function inputFor({ name, types, required, default: preset }) {
  if (name === "node") {
    const select = element("select", { "data-nodes": true, "data-type": "integer" });
    select.required = required;
    fillNodes(select);
    return select;
  }
  if (types.includes("boolean")) return element("input", { type: "checkbox", checked: preset === true });
  if (types.includes("object") && !types.includes("string")) return element("input", { "data-type": "json", placeholder: "{}" });
  if (types.includes("object")) return element("textarea", { rows: 1, "data-type": "string" });
  const number = types.includes("integer") ? "integer" : types.includes("number") ? "number" : null;
  if (number) return element("input", { type: "number", step: number === "integer" ? 1 : "any", "data-type": number, value: preset });
  const list = name === "collection" ? { list: "collection-names" } : {};
  return element("input", { "data-type": "string", value: preset, ...list });
}

function membersOf(form) {
  const members = {};
  for (const input of form.querySelectorAll("[name]")) {
    const kind = input.dataset.type;
    if (input.type === "checkbox") members[input.name] = input.checked;
    else if (kind === "string" && input.required) members[input.name] = input.value;
    else if (input.value === "") continue;
    else if (kind === "integer" || kind === "number") members[input.name] = Number(input.value);
    else members[input.name] = kind === "json" ? JSON.parse(input.value) : input.value;
  }
  return members;
}

function operationForm({ name, about, parameters }, fields = null) {
  const form = element(
    "form",
    {
      "data-operation": name,
      "aria-label": name.replaceAll("_", " "),
      onsubmit: (event) => {
        event.preventDefault();
        try {
          operate(name, membersOf(form));
        } catch (error) {
          report(`${name}: expected JSON, found something else: ${error.message}`, "bad");
        }
      },
    },
    element("p", { class: "note" }, about.replaceAll("`", "")),
  );
  const inputs = fields ?? parameters.map((one) => field(one.name, inputFor(one), one));
  form.append(element("div", { class: "fields" }, ...inputs, element("button", {}, name.replaceAll("_", " "))));
  return form;
}

function faultForm(operation, faults) {
  const choice = element("select", { "data-type": "string" }, ...faults.map(({ name }) => element("option", {}, name)));
  const options = element("div", { class: "fields options" });
  const about = element("p", { class: "note" });
  const show = () => {
    const fault = faults.find(({ name }) => name === choice.value);
    setText(about, fault.about.replaceAll("\n", " ").replaceAll("`", ""));
    options.replaceChildren(
      ...fault.options.map(({ name, about: help, default: preset, choices }) => {
        const list = `choices-${fault.name}-${name}`;
        const input = element("input", { placeholder: preset, list: choices.length ? list : null });
        const names = element("datalist", { id: list }, ...choices.map((one) => element("option", { value: one })));
        const label = field(name, input, { about: help });
        if (choices.length) label.append(names);
        return label;
      }),
    );
  };
  choice.addEventListener("change", show);
  const form = operationForm(operation, [field("name", choice, { required: true })]);
  form.querySelector(".fields").before(about);
  form.querySelector("button").before(options);
  show();
  return form;
}

async function makeForms() {
  const response = await fetch("control/operations");
  if (!response.ok) return report((await response.json()).error, "bad");
  const { operations, faults } = await response.json();
  const groups = Map.groupBy ? Map.groupBy(operations, ({ group }) => group) : new Map();
  if (!groups.size) operations.forEach((one) => groups.set(one.group, [...(groups.get(one.group) ?? []), one]));
  for (const [group, members] of groups) {
    const forms = members.map((one) => (one.name === "fault" ? faultForm(one, faults) : operationForm(one)));
    byId("groups").append(element("details", { open: group === "nodes" }, element("summary", {}, group), ...forms));
  }
}

// Events.

let lastEvent = 0;

function onState(event) {
  lastEvent = performance.now();
  const { time, seconds, seqnos = [], owners = [], total, log, collections, ...rest } = JSON.parse(event.data);
  const first = !state.cluster.vbuckets;
  Object.assign(state, rest);
  for (let at = 0; at < seqnos.length; at += 2) state.seqnos[seqnos[at]] = seqnos[at + 1];
  for (const [number, ...owning] of owners) state.owners[number] = owning;
  if (rest.cluster) {
    setText(byId("bucket"), rest.cluster.bucket);
    const { release, vbuckets, replicas, replica_lag: lag, addresses } = rest.cluster;
    setText(byId("facts"), `release ${release}, ${vbuckets} vbuckets, ${replicas} ${replicas === 1 ? "replica" : "replicas"}${lag ? `, which lag by ${lag}` : ""}, ${addresses.join(", ")}`);
    document.title = printable(`${rest.cluster.bucket}: embedded cluster`);
    makeGrid();
  }
  showNodes(seconds);
  // A node that has changed its state changes the cells of its vbuckets.
  showVbuckets(rest.nodes && rest.nodes.some(({ number, state: now }) => stateOf.get(number) !== now) ? state.owners.keys() : seqnos.filter((_, index) => index % 2 === 0));
  for (const { number, state: now } of state.nodes) stateOf.set(number, now);
  showConsumers(seconds);
  if (rest.connections) logConsumers(time);
  if (rest.faults) showFaults();
  if (collections) showCollections(collections);
  if (log) showLog(log);
  if (total !== undefined) addPoint(first ? (rate("total", total, 0), 0) : rate("total", total, seconds));
}

const stateOf = new Map();

function watch() {
  const source = new EventSource("control/events");
  const live = byId("live");
  const say = (text, kind, ...more) => {
    live.replaceChildren(text, ...more);
    live.dataset.state = kind;
  };
  source.addEventListener("open", () => {
    // The first event has the whole state.
    [totals, stateOf].forEach((map) => map.clear());
    say("live", "good");
  });
  source.addEventListener("message", onState);
  source.addEventListener("error", () => {
    const port = state.cluster.control_port;
    const elsewhere = `http://${location.hostname}:${port}/`;
    const other = port && location.port !== String(port) ? element("a", { href: elsewhere }, "the page of the cluster") : "";
    const ended = source.readyState === EventSource.CLOSED;
    say(ended ? "refused: reload this page " : "no connection, trying again ", "bad", ...(other ? [other] : []));
  });
}

// Nothing arrives while nothing changes.
setInterval(() => {
  if (!lastEvent || performance.now() - lastEvent < 1400) return;
  addPoint(0);
  showNodes(1);
  showConsumers(1);
}, 1000);

makeForms();
watch();
