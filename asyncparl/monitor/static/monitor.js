// The pages. Each follows one stream of events; a stream tells only what has changed, and one page of a table.
"use strict";

const page = document.body.dataset.page;
const byId = (id) => document.getElementById(id);
const MAX_LINES = 1000;
const ANSI = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;

function setLive(state, text) {
  const live = byId("live");
  live.className = "live " + state;
  setText(byId("live-text"), text);
}

function showFault(text) {
  const fault = byId("fault");
  setText(fault, text);
  show(fault, Boolean(text));
}

// On all pages but the overview, which lists them.
function showAttention({ num_alarms: number, first_alarm: first }) {
  const line = byId("attention");
  show(line, number > 0 && page !== "overview");
  if (!number) return;
  line.href = number === 1 ? first.link : "/";
  line.classList.toggle("is-bad", first.is_bad);
  setText(line, `Needs attention (${number}): ${first.text}`);
}

// Follow a stream; `draw` is given all that is known. `again` opens it with another query.
function follow(path, draw) {
  let source = null;
  let known = {};
  function open(query) {
    if (source) source.close();
    source = new EventSource(path + (query ? "?" + query : ""));
    source.addEventListener("open", () => { known = {}; setLive("on", "live"); });
    source.addEventListener("error", () => lost(source));
    source.addEventListener("refused", (event) => { source.close(); setLive("off", "refused"); showFault(JSON.parse(event.data)); });
    source.addEventListener("picture", (event) => {
      const told = JSON.parse(event.data);
      const rows = { ...known.rows, ...told.rows };
      known = { ...known, ...told };
      known.rows = known.order ? Object.fromEntries(known.order.map((key) => [key, rows[key]])) : rows;
      showFault(known.fault ? known.fault + " — what is shown was seen before; it is tried again." : "");
      showAttention(known);
      draw(known);
    });
  }
  return open;
}

async function lost(source) {
  setLive("off", "no connection");
  showFault("The monitor does not answer; trying again. If it was stopped, start it again.");
  if (source.readyState !== EventSource.CLOSED) return;
  // The browser has given up: the token may have expired.
  try {
    const answer = await fetch("/stream/nothing");
    if (answer.status === 401) location.href = "/login";
  } catch { /* it is not there */ }
  setTimeout(() => location.reload(), 5000);
}

addEventListener("offline", () => setLive("off", "offline"));

// --- pieces --------------------------------------------------------------------------------------------------------

function listEvents(list, events) {
  const lines = events.map((event) => {
    const line = make("li", event.is_warning ? "is-warning" : "");
    const time = make("time", "", format.time(event.time));
    const text = event.actor_id ? link("/actors/" + event.actor_id, event.text) : document.createTextNode(event.text);
    line.append(time, make("span", "", text));
    return line;
  });
  const signature = events.map((event) => event.key).join();
  if (list.signature === signature) return;
  list.signature = signature;
  list.replaceChildren(...lines);
  show(document.querySelector(`[data-empty="${list.id}"]`), !lines.length);
}

function listFacts(list, facts) {
  const signature = JSON.stringify(facts);
  if (list.signature === signature) return;
  list.signature = signature;
  list.replaceChildren(...facts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
}

// Tiles are made once; then only their texts change.
function showTiles(place, tiles) {
  if (place.children.length !== tiles.length) {
    place.replaceChildren(...tiles.map(() => {
      const tile = make("div", "tile");
      tile.append(make("h2"), make("p", "figure"), make("p", "note"));
      return tile;
    }));
  }
  tiles.forEach(([name, value, note = ""], index) => {
    const tile = place.children[index];
    [name, value, note].forEach((text, part) => setText(tile.children[part], text));
    if (meanings[name]) tile.title = meanings[name];
  });
}

// The same alarm keeps its line, so that the focus stays and nothing is read out again.
function listAlarms(list, alarms) {
  const signature = JSON.stringify(alarms.map((alarm) => [alarm.text, alarm.link]));
  if (list.signature !== signature) {
    list.signature = signature;
    list.replaceChildren(...alarms.map((alarm) => {
      const line = make("li", alarm.is_bad ? "is-bad" : "", link(alarm.link, alarm.text));
      const time = make("span");
      time.setAttribute("aria-live", "off");
      line.append(time);
      return line;
    }));
  }
  alarms.forEach((alarm, index) => {
    setText(list.children[index].lastChild, alarm.for_s == null ? "" : `for ${format.duration(alarm.for_s)}`);
  });
}

// What is measured: titles are for the mouse, the list at the end of a page for everybody.
const meanings = {
  "Agent steps/s": "Steps of agents that the learner has learned from, per second.",
  "Busy": "Of the time, that a method of the actor ran in its own thread, whether it computed or waited for something. An actor that is always busy has as many calls as it can take.",
  "CPU": "Of one CPU, that the process of the actor used: 100% is one whole core. Less than Busy: its methods wait, or others use the cores.",
  "Calls": "Calls of methods that have ended, and items of streams, per second.",
  "p50": "How long the last calls ran, without their wait in the queue: half of them no longer than this.",
  "p95": "How long the last calls ran: 95 of 100 no longer than this.",
  "p99": "How long the last calls ran: 99 of 100 no longer than this.",
  "Queue": "Calls that have arrived at the actor and not begun.",
  "Memory": "Of actors: their own, without what they share with other processes. Of nodes: in use on the whole machine.",
  "silent": "The process of an actor does not answer within half a second: it was stopped, or native code holds Python's lock. What it counts itself is not known then; CPU and memory are read from the system.",
  "CPU busy": "Of all CPUs of the machine, whoever uses them.",
  "CPUs leased": "CPUs that actors have asked for (num_cpus=...), likewise GPUs. What is really used is CPU busy and GPU busy.",
  "Told by": "Who has noticed it: the master, a node, or this monitor.",
  "Return": "Sum of the rewards of an episode, mean of the last 100 episodes.",
  "Policy lag": "By how many updates the weights that acted are older than those that learn, mean.",
  "Policy delay": "From the publication of new weights to an actor's first step with them, median.",
  "Batch age": "From the first rollout of a batch to the end of its update, mean.",
  "Batches waiting": "Complete batches that the learner has not taken yet. None: it takes them as fast as they come.",
  "Rollouts waiting": "Rollouts that have arrived and have no room in a batch: the learner is behind.",
  "Learner waits": "Of the learner's time: it has no batch to learn from. The rest is copying and computing.",
  "Learner computes": "Of the learner's time.",
  "Actors' time": "What actors do: they step their environments, choose actions with the policy, or neither.",
  "Entropy": "Of the policy. 0: it always takes the same action.",
  "Time to go": "If it goes on as fast as in the last 20 seconds.",
};

function explain(names) {
  byId("meanings").replaceChildren(...names.flatMap((name) => [make("dt", "", name), make("dd", "", meanings[name])]));
  show(byId("glossary"), true);
}

function isFailed(row) { return row.state === "ended" && row.is_failed; }

function actorBadge(row) { return isFailed(row) ? badge("died", "failed") : badge(row.state); }

function doing(row) {
  if (row.silent_s != null) return `silent for ${format.duration(row.silent_s)}: ${row.doing}`;
  return row.doing + (row.doing_s == null ? "" : ` (${format.duration(row.doing_s)})`);
}

function actorClass(row) {
  return row.state === "silent" ? "is-silent" : (row.state === "ended" ? "is-ended" : "") + (isFailed(row) ? " is-failed" : "");
}

const actorColumns = [
  { label: "Actor", sort: "name", kind: "head nowrap", signature: (row) => row.name + row.public_name,
    of: (row) => { const cell = make("span", "", link("/actors/" + row.actor_id, row.name));
      if (row.public_name) cell.append(" ", make("code", "", row.public_name)); return cell; } },
  { label: "State", sort: "state", signature: (row) => row.state + row.is_failed, of: actorBadge },
  { label: "Doing", sort: "doing", kind: "wide", of: doing },
  { label: "Calls", sort: "calls", kind: "number", of: (row) => format.rate(row.calls_per_s) },
  { label: "Busy", sort: "busy", kind: "number", of: (row) => format.percent(row.busy_share) },
  { label: "p50", sort: "p50", kind: "number", of: (row) => format.duration(row.p50_s) },
  { label: "p99", sort: "p99", kind: "number", of: (row) => format.duration(row.p99_s) },
  { label: "Queue", sort: "queue", kind: "number", of: (row) => format.number(row.num_waiting) },
  { label: "CPU", sort: "cpu", kind: "number", of: (row) => format.percent(row.cpu_share) },
  { label: "Memory", sort: "memory", kind: "number", of: (row) => format.bytes(row.memory_bytes) },
  { label: "Restarts", sort: "restarts", kind: "number", of: (row) => row.num_restarts ? String(row.num_restarts) : none },
  { label: "Node", sort: "node", kind: "nowrap", of: (row) => row.node || none },
  { label: "Process", kind: "number minor", of: (row) => row.pid == null ? none : String(row.pid) },
  { label: "Program", kind: "minor", of: (row) => row.program || none },
];

function ofCpus(number) { return number ? ` of ${format.count(number, "CPU")}` : ""; }

const nodeColumns = [
  { label: "Node", sort: "name", kind: "head nowrap", of: (row) => row.name },
  { label: "State", sort: "state", signature: (row) => row.state, of: (row) => badge(row.state) },
  { label: "Actors", sort: "actors", kind: "number", of: (row) => format.number(row.num_actors) },
  { label: "CPU busy", sort: "cpu", kind: "number",
    of: (row) => row.cpu_share == null ? none : format.percent(row.cpu_share) + ofCpus(row.num_cpus) },
  { label: "CPUs leased", kind: "number",
    of: (row) => format.number(row.used_cpus, 3) + (row.total_cpus == null ? ", no limit" : ` of ${format.number(row.total_cpus, 3)}`) },
  { label: "GPUs leased", kind: "number gpu",
    of: (row) => row.used_gpus.length
      ? `${format.number(row.used_gpus.reduce((sum, share) => sum + share, 0), 3)} of ${row.used_gpus.length}` : none },
  { label: "GPU busy", kind: "nowrap gpu",
    of: (row) => row.gpus.map((gpu) => `${format.percent(gpu.busy_share)}, ${format.bytes(gpu.used)}`).join("; ") || none },
  { label: "Memory", sort: "memory", kind: "number",
    of: (row) => row.used_memory_bytes == null ? none
      : `${format.bytes(row.used_memory_bytes)} of ${format.bytes(row.total_memory_bytes)}` },
  { label: "Calls", sort: "calls", kind: "number", of: (row) => format.rate(row.calls_per_s) },
  { label: "Labels", kind: "nowrap",
    of: (row) => Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join(", ") || none },
  { label: "Note", kind: "wide", of: (row) => row.fault },
];

const eventColumns = [
  { label: "Time", kind: "nowrap", of: (row) => format.time(row.time) },
  { label: "Event", kind: "wide unlabelled", signature: (row) => row.text,
    of: (row) => row.actor_id ? link("/actors/" + row.actor_id, row.text) : row.text },
  { label: "Told by", kind: "nowrap", of: (row) => row.where },
];

for (const column of [...actorColumns, ...nodeColumns, ...eventColumns]) column.title = meanings[column.label];

// --- tables --------------------------------------------------------------------------------------------------------

function tablePage(columns, rowClass, noun) {
  const url = new URLSearchParams(location.search);
  const wish = { page: url.get("page") || "1", sort: url.get("sort") || "", q: url.get("q") || "", state: url.get("state") || "" };
  const table = new LiveTable(byId("table"), columns, { rowClass, onSort: sortBy });
  let pages = 1;
  byId("search").value = wish.q;
  if (byId("state")) byId("state").value = wish.state;

  const open = follow("/stream/" + page, (known) => {
    pages = known.pages;
    table.update(known.order, known.rows);
    byId("table").classList.toggle("no-gpus", known.has_gpus === false);
    show(byId("table").parentElement, known.found > 0);
    show(document.querySelector('[data-empty="table"]'), known.total === 0 && !wish.state);
    show(byId("nothing-found"), known.found === 0 && (known.total > 0 || wish.state !== ""));
    show(byId("pager"), pages > 1);
    setText(byId("page-text"), `page ${known.page} of ${pages}`);
    for (const button of byId("pager").querySelectorAll("button")) {
      button.disabled = ["first", "previous"].includes(button.dataset.go) ? known.page <= 1 : known.page >= pages;
    }
    wish.page = String(known.page);
    const all = `${format.number(known.total)} ${known.total === 1 ? noun.slice(0, -1) : noun}`;
    setText(byId("count"), known.found === known.total ? all : `${format.number(known.found)} of ${all}`);
  });

  function again(changes) {
    Object.assign(wish, changes);
    const query = new URLSearchParams(Object.entries(wish).filter(([name, value]) => value && !(name === "page" && value === "1")));
    history.replaceState(null, "", location.pathname + (query.size ? "?" + query : ""));
    table.showSort(wish.sort.replace("-", ""), wish.sort.startsWith("-"));
    open(query.toString());
  }

  function sortBy(name, isNumber) {
    const order = isNumber ? ["-" + name, name, ""] : [name, "-" + name, ""];
    again({ sort: order[(order.indexOf(wish.sort) + 1) % 3], page: "1" });
  }

  let timer = 0;
  byId("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => again({ q: byId("search").value.trim(), page: "1" }), 250);
  });
  byId("tools").addEventListener("submit", (event) => event.preventDefault());
  if (byId("state")) byId("state").addEventListener("change", () => again({ state: byId("state").value, page: "1" }));
  byId("clear").addEventListener("click", () => {
    byId("search").value = "";
    if (byId("state")) byId("state").value = "";
    again({ q: "", state: "", page: "1" });
  });
  byId("pager").addEventListener("click", (event) => {
    const now = Number(wish.page);
    const target = { first: 1, previous: now - 1, next: now + 1, last: pages }[event.target.dataset.go];
    if (target) again({ page: String(target) });
  });
  again({});
}

// --- the pages -----------------------------------------------------------------------------------------------------

const pagesByName = {
  overview() {
    const tile = (name, figure, note) => {
      setText(document.querySelector(`[data-tile="${name}"]`), figure);
      setText(document.querySelector(`[data-note="${name}"]`), note);
    };
    const columns = ["Actor", "Doing", "Calls", "p50", "Queue"].map((label) => actorColumns.find((each) => each.label === label));
    const busiest = new LiveTable(byId("busiest"), columns, { rowClass: actorClass });
    explain(["Agent steps/s", "Calls", "p50", "Queue", "CPUs leased", "silent"]);
    follow("/stream/overview", (known) => {
      tile("nodes", format.number(known.nodes), known.nodes === known.nodes_ready ? (known.nodes ? "all ready" : "none has joined") : `${known.nodes_ready} ready`);
      const states = Object.entries(known.actors_by_state).map(([state, number]) => `${number} ${state}`);
      if (known.actors_failed) states.push(`${known.actors_failed} died`);
      tile("actors", format.number(known.actors), states.join(", ") || "none");
      const leased = format.number(known.used_cpus, 1) + (known.total_cpus == null ? "" : ` of ${format.number(known.total_cpus, 1)}`);
      tile("cpu", format.percent(known.cpu_share), `${ofCpus(known.num_cpus)}${known.num_cpus ? ", " : ""}${leased} leased`.trim());
      tile("gpu", format.percent(known.gpu_share), `${format.number(known.used_gpus, 2)} of ${known.total_gpus} leased`);
      show(byId("gpu-tile"), known.total_gpus > 0);
      setText(byId("cpu-caption"), known.total_gpus > 0 ? "CPU and GPU busy" : "CPU busy");
      tile("memory", format.bytes(known.used_memory), known.total_memory == null ? "" : `of ${format.bytes(known.total_memory)}`);
      const isTraining = known.steps_per_s != null;
      setText(byId("speed"), isTraining ? "Agent steps/s" : "Calls");
      tile("speed", isTraining ? format.short(known.steps_per_s) : format.rate(known.calls_per_s), isTraining ? format.count(known.runs.length, "run") : "");
      listRuns(known.runs, "");
      listAlarms(byId("alarms"), known.alarms);
      show(byId("no-alarms"), !known.alarms.length);
      busiest.update(known.busiest.map((row) => row.actor_id), Object.fromEntries(known.busiest.map((row) => [row.actor_id, row])));
      show(document.querySelector('[data-empty="busiest"]'), !known.busiest.length);
      show(byId("busiest"), known.busiest.length > 0);
      listEvents(byId("recent"), known.events);
      if (known.history !== this.drawn) {
        this.drawn = known.history;
        const { x, cpu, gpu, calls, steps } = known.history;
        setText(byId("since"), x.length ? `Since ${format.time(x[0])}. Only what was looked at is known: gaps are times without an open page.` : "");
        draw("c-cpu", x, [{ name: "CPU", y: cpu }, { name: "GPU", y: gpu }], { format: ".0%", from0: true, top: 1 });
        draw("c-calls", x, [{ name: "calls/s", y: calls }], { format: "~s", from0: true });
        draw("c-steps", x, [{ name: "steps/s", y: steps }], { format: "~s", from0: true });
      }
    })("");
  },

  nodes() {
    tablePage(nodeColumns, (row) => row.fault ? "is-warning" : "", "nodes");
    explain(["CPU busy", "CPUs leased", "Memory", "Calls"]);
  },

  actors() {
    tablePage(actorColumns, actorClass, "actors");
    explain(["Calls", "Busy", "CPU", "p50", "p99", "Queue", "Memory", "silent"]);
  },

  events() {
    tablePage(eventColumns, (row) => row.is_warning ? "is-warning" : "", "events");
    explain(["Told by", "silent"]);
  },

  actor() {
    const id = document.body.dataset.actor;
    let deathOf = null;
    explain(["Calls", "Busy", "CPU", "p50", "Queue", "Memory", "silent"]);
    follow("/stream/actor", ({ actor, events }) => {
      listEvents(byId("recent"), events);
      if (!actor) {
        setText(byId("doing"), "No such actor is known: it has ended long ago, or it never was. Its log may still be there.");
        return;
      }
      setText(byId("name"), actor.name);
      document.title = `${actor.name} · asyncparl`;
      const mark = byId("badge");
      mark.className = "badge " + (isFailed(actor) ? "failed" : actor.state);
      setText(mark, isFailed(actor) ? "died" : actor.state);
      show(mark, true);
      setText(byId("doing"), actor.state === "ended" ? "" : doing(actor));
      showTiles(byId("figures"), [
        ["Calls", format.rate(actor.calls_per_s)], ["Busy", format.percent(actor.busy_share)],
        ["p50", format.duration(actor.p50_s)], ["p95", format.duration(actor.p95_s)],
        ["p99", format.duration(actor.p99_s)], ["Queue", format.number(actor.num_waiting)],
        ["Calls so far", format.number(actor.num_calls)], ["Raised", format.number(actor.num_failed)],
        ["CPU", format.percent(actor.cpu_share)], ["Memory", format.bytes(actor.memory_bytes)],
        ["Age", format.duration(actor.age_s)], ["Restarts", format.number(actor.num_restarts)],
      ]);
      byId("figures").classList.toggle("is-silent", actor.state === "silent");
      listFacts(byId("facts"), [
        ["Id", actor.actor_id], ["Class", actor.class_name], ["Public name", actor.public_name || none],
        ["Program", actor.program || none], ["Node", actor.node || none], ["Process", actor.pid == null ? none : String(actor.pid)],
      ]);
      const ending = actor.state === "ended" ? actor.ended_at : null;
      if (ending !== deathOf) { deathOf = ending; showDeath(ending == null ? null : actor); }
    })("id=" + encodeURIComponent(id));
    followLog(id);
  },

  runs() {
    let chosen = new URLSearchParams(location.search).get("run") || "";
    const open = follow("/stream/runs", (known) => {
      show(document.querySelector('[data-empty="runs"]'), !known.runs.length);
      show(byId("run"), known.runs.length > 0);
      listRuns(known.runs, known.chosen);
      const run = known.runs.find((each) => each.run_id === known.chosen);
      if (!run) return;
      showVerdicts(known.verdicts);
      showRun(run.values, known.num_actors, known.num_silent);
      if (known.history !== this.drawn) { this.drawn = known.history; drawRun(known.history); }
    });
    byId("runs").addEventListener("click", (event) => {
      const target = event.target.closest("a");
      if (!target || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      chosen = target.dataset.run;
      history.replaceState(null, "", target.href);
      open("run=" + encodeURIComponent(chosen));
    });
    makeCharts();
    explain(["Return", "Agent steps/s", "Time to go", "Learner waits", "Actors' time", "Policy lag", "Policy delay", "Batch age",
      "Batches waiting", "Rollouts waiting", "Entropy"]);
    open(chosen ? "run=" + encodeURIComponent(chosen) : "");
  },

  login() {
    const field = byId("token");
    async function send(token) {
      let answer;
      try {
        answer = await fetch("/login", { method: "POST", body: token });
      } catch {
        setText(byId("login-text"), "The monitor does not answer.");
        return;
      }
      if (answer.ok) location.replace("/");
      else setText(byId("login-text"), "That is not the token.");
    }
    byId("login").addEventListener("submit", (event) => { event.preventDefault(); send(field.value); });
    const given = location.hash.slice(1);
    if (given) { history.replaceState(null, "", location.pathname); send(decodeURIComponent(given)); }
    else field.focus();
  },
};

// --- one actor -----------------------------------------------------------------------------------------------------

async function showDeath(actor) {
  show(byId("death"), Boolean(actor));
  if (!actor) return;
  setText(byId("death-reason"), actor.doing);
  setText(byId("death-code"), `at ${format.time(actor.ended_at)}`);
  let report = null;
  try { report = await (await fetch(`/actors/${actor.actor_id}/death`)).json(); } catch { /* its node is gone, too */ }
  if (!report) { byId("death-tail").textContent = ""; return; }
  setText(byId("death-reason"), report.reason);
  const how = report.signal != null ? `signal ${report.signal}` : report.exit_code != null ? `exit code ${report.exit_code}` : "";
  setText(byId("death-code"), [how, `at ${format.time(actor.ended_at)}`].filter(Boolean).join(", "));
  byId("death-tail").textContent = report.log_tail.join("\n").replace(ANSI, "") || "(it wrote nothing)";
}

function followLog(id) {
  const log = byId("log");
  let source = null;
  let waiting = [];
  let search = "";

  function open() {
    if (source) source.close();
    source = new EventSource(`/stream/log/${encodeURIComponent(id)}?q=${encodeURIComponent(search)}`);
    source.addEventListener("open", clear);
    source.addEventListener("lines", (event) => {
      if (!waiting.length) requestAnimationFrame(flush);
      waiting.push(...JSON.parse(event.data));
      if (waiting.length > MAX_LINES) waiting = waiting.slice(-MAX_LINES);
    });
    source.addEventListener("end", (event) => {
      source.close();
      if (waiting.length) flush();
      setText(byId("log-count"), JSON.parse(event.data));
      showEmpty();
    });
  }

  function clear() { log.replaceChildren(); waiting = []; showEmpty(); setText(byId("log-count"), ""); }

  function flush() {
    const lines = document.createDocumentFragment();
    for (const text of waiting) lines.append(line(text.replace(ANSI, "")));
    waiting = [];
    log.append(lines);
    while (log.childElementCount > MAX_LINES) log.firstElementChild.remove();
    if (byId("follow").checked) log.scrollTop = log.scrollHeight;
    const number = log.childElementCount;
    setText(byId("log-count"), number === MAX_LINES ? `the last ${format.number(number)} lines` : `${number} lines`);
    showEmpty();
  }

  function line(text) {
    const element = make("div");
    const at = search ? text.toLowerCase().indexOf(search.toLowerCase()) : -1;
    if (at < 0) element.textContent = text || " ";
    else element.append(text.slice(0, at), make("mark", "", text.slice(at, at + search.length)), text.slice(at + search.length));
    return element;
  }

  function showEmpty() {
    setText(byId("log-empty"), search ? "No line has that." : "It has written nothing yet.");
    show(byId("log-empty"), !log.childElementCount);
  }

  let timer = 0;
  byId("log-search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { search = byId("log-search").value; open(); }, 300);
  });
  byId("log-tools").addEventListener("submit", (event) => event.preventDefault());
  open();
}

// --- runs ----------------------------------------------------------------------------------------------------------

// Programs report what they like.
function numberIn(values, name) { return typeof values[name] === "number" ? values[name] : null; }

function listRuns(runs, chosen) {
  const signature = JSON.stringify([runs.map((run) => [run.run_id, run.is_over, run.age_s > 60 && Math.round(run.age_s / 10), run.values.agent_steps]), chosen]);
  const list = byId("runs");
  if (list.signature === signature) return;
  list.signature = signature;
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.run : null;
  list.replaceChildren(...runs.map((run) => {
    const { title, mean_return: score } = run.values;
    const [steps, target, speed] = ["agent_steps", "target_steps", "steps_per_s"].map((name) => numberIn(run.values, name));
    const entry = link("/runs?run=" + encodeURIComponent(run.run_id), "");
    entry.dataset.run = run.run_id;
    if (run.run_id === chosen) entry.setAttribute("aria-current", "true");
    const state = run.is_over ? badge("over") : run.age_s > 60 ? badge(`silent for ${format.duration(run.age_s)}`, "late") : badge("running");
    entry.append(make("strong", "", title || run.program), " ", state);
    const facts = steps == null ? [] : [`${format.short(steps)}${target ? ` of ${format.short(target)}` : ""} steps`];
    if (speed != null && !run.is_over) facts.push(`${format.short(speed)} steps/s`);
    if (score != null) facts.push(`return ${format.figure(score)}`);
    entry.append(make("p", "note", facts.join(", ")));
    if (target && steps != null) { const bar = make("progress"); bar.max = target; bar.value = Math.min(steps, target); bar.title = "steps done";
      bar.setAttribute("aria-label", "steps done"); entry.append(bar); }
    return make("li", "", entry);
  }));
  if (focused) list.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
}

const runCharts = [
  ["return", "Return", [["mean return", "mean_return"]], { least: 0.25 }],
  ["steps", "Agent steps/s", [["steps/s", "steps_per_s"]], { format: "~s", from0: true }],
  ["losses", "Losses", [["policy", "losses/pg_loss"], ["value", "losses/value_loss"], ["total", "losses/total_loss"]], { format: "~s" }],
  ["entropy", "Entropy", [["entropy", "losses/entropy"]], { from0: true }],
  ["learner", "Learner's time", [["waiting", "waiting_share"], ["copying", "copying_share"], ["computing", "computing_share"]],
    { format: ".0%", stacked: true, from0: true, top: 1 }],
  ["actors", "Actors' time", [["environment", "environment_share"], ["policy", "inference_share"]],
    { format: ".0%", stacked: true, from0: true, top: 1 }],
  ["lag", "Policy lag, updates", [["mean", "mean_lag"], ["max", "max_lag"]], { from0: true }],
  ["age", "Batch age and policy delay, seconds", [["batch age", "batch_age_s"], ["policy delay", "policy_delay_s"]], { from0: true }],
  ["queue", "Queues", [["batches waiting", "batches_waiting"], ["rollouts waiting", "rollouts_waiting"]], { from0: true }],
  ["rate", "Learning rate", [["learning rate", "losses/learning_rate"]], { format: ".2~e", from0: true }],
];

function makeCharts() {
  byId("charts").replaceChildren(...runCharts.map(([id, title]) => {
    const figure = make("figure", "card");
    const place = make("div", "chart none");
    place.id = "r-" + id;
    figure.append(make("figcaption", "", title), place);
    return figure;
  }));
}

function drawRun(curves) {
  const isOverSteps = "agent_steps" in curves;
  for (const [id, , names, options] of runCharts) {
    draw("r-" + id, curves.x, names.map(([name, key]) => ({ name, y: curves[key] })), { kind: isOverSteps ? "steps" : "time", ...options });
  }
}

function showVerdicts(sentences) {
  const place = byId("verdicts");
  show(place, sentences.length > 0);
  if (place.signature === sentences.join()) return;
  place.signature = sentences.join();
  place.replaceChildren(...sentences.map((sentence) => make("p", "", sentence)));
}

function showRun(values, numActors, numSilent) {
  const figure = (name) => values[name] == null ? none : format.figure(values[name]);
  const [steps, target, speed, episodes] = ["agent_steps", "target_steps", "steps_per_s", "episodes"].map((name) => numberIn(values, name));
  // What a return is the mean of is known of our own runs.
  const isOurs = values.waiting_share != null && episodes > 0;
  showTiles(byId("figures"), [
    ["Return", figure("mean_return"), !isOurs ? "" : episodes < 100 ? `mean of ${format.count(episodes, "episode")} so far`
      : `mean of the last 100 of ${format.short(episodes)} episodes`],
    ["Agent steps/s", format.short(speed)],
    ["Progress", target && steps != null ? format.percent(steps / target, 1) : none, target && steps != null ? `${format.short(steps)} of ${format.short(target)} steps` : ""],
    ["Time to go", target && steps != null && speed > 0 ? format.duration(Math.max(target - steps, 0) / speed) : none,
      values.elapsed_s == null ? "" : `elapsed: ${format.duration(values.elapsed_s)}`],
    ["Learner waits", format.percent(values.waiting_share)], ["Learner computes", format.percent(values.computing_share)],
    ["Policy lag", values.mean_lag == null ? none : format.count(values.mean_lag, "update")],
    ["Policy delay", format.duration(values.policy_delay_s)], ["Batch age", format.duration(values.batch_age_s)],
    ["Batches waiting", figure("batches_waiting")], ["Rollouts waiting", figure("rollouts_waiting")],
    ["Actors", figure("actors"), numSilent ? `${numActors - numSilent} of ${numActors} answer` : ""],
    ["Entropy", figure("losses/entropy")], ["Learning rate", figure("losses/learning_rate")],
  ]);
  listFacts(byId("facts"), Object.entries(values).map(([name, value]) => [name, format.figure(value)]));
}

pagesByName[page]();
