// Reads status.json each second and shows it. Names and reasons come from operators and guests, so all text goes in by textContent.
"use strict";

const INTERVAL = 1000;
// A status that takes longer is given up; the daemon does the same after 5 seconds.
const PATIENCE = 6000;

const element = (id) => document.getElementById(id);
let before = null;
let paused = false;

// A table's cell. Its text may be followed by small lines.
function cell(text, { name = "td", kind = "", small = [] } = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  if (name === "th") made.scope = "row";
  if (kind) made.className = kind;
  for (const line of small) {
    const below = document.createElement("small");
    below.textContent = line;
    made.append(below);
  }
  return made;
}

const head = (text) => cell(text, { name: "th" });
const number = (text) => cell(text, { kind: "number" });

function fill(id, rows) {
  const made = rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  });
  element(id).replaceChildren(...made);
}

function scaled(value) {
  if (value === null) return "–";
  const units = ["", " k", " M", " G", " T"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return value.toFixed(value < 10 && value > 0 ? 2 : value < 100 && value > 0 ? 1 : 0) + units[unit];
}

const percent = (share) => `${(share * 100).toFixed(1)} %`;

// What was counted since the status before, per second; null while there is none. What is new, or counts from zero again, has all of its
// count from the interval.
function rate(now, old, seconds) {
  if (!seconds) return null;
  return (now >= (old ?? 0) ? now - (old ?? 0) : now) / seconds;
}

function traffic(now, old, seconds) {
  const bits = rate(now.bytes, old?.bytes, seconds);
  return [number(scaled(rate(now.frames, old?.frames, seconds))), number(scaled(bits === null ? null : bits * 8))];
}

function drops(now, old, seconds) {
  const reasons = Object.entries(now).filter(([, count]) => count > 0);
  const lines = reasons.map(([reason, count]) => {
    const recent = rate(count, old?.[reason], seconds);
    return `${reason}: ${count.toLocaleString("en")}${recent ? ` (${scaled(recent)}/s)` : ""}`;
  });
  const sum = reasons.reduce((all, [, count]) => all + count, 0);
  return cell(sum.toLocaleString("en"), { small: lines });
}

function state(text, reason) {
  return cell(text, { kind: text === "up" && !reason ? "" : "bad", small: reason ? [reason] : [] });
}

function queue({ port, kind, queue: index }) {
  if (kind === "task") return `${port}/task`;
  return `${port}/${kind === "for-guest" ? "guest-" : ""}${index ?? 0}`;
}

function show(now, old, seconds) {
  const known = new Map((old?.ports ?? []).map((port) => [port.name, port]));
  fill("ports", now.ports.map((port) => {
    const earlier = known.get(port.name);
    return [
      head(port.name),
      cell(port.kind),
      state(port.state, port.reason_text),
      ...traffic(port.ingress, earlier?.ingress, seconds),
      ...traffic(port.egress, earlier?.egress, seconds),
      drops(port.drops, earlier?.drops, seconds),
    ];
  }));
  element("absent").textContent = now.absent.length ? `Not started: ${now.absent.join(", ")}` : "";

  const contexts = (status) =>
    (status?.nics ?? []).flatMap((nic) => nic.contexts.map((context) => [`${nic.name}/${context.context}`, context]));
  const knownContexts = new Map(contexts(old));
  const rows = contexts(now).map(([name, context]) => {
    const earlier = knownContexts.get(name);
    return [
      head(name),
      cell(context.guest),
      state(context.state, context.reason),
      ...traffic(context.tx, earlier?.tx, seconds),
      ...traffic(context.rx, earlier?.rx, seconds),
      drops(context.drops, earlier?.drops, seconds),
    ];
  });
  fill("contexts", rows);
  element("contexts").closest("section").hidden = rows.length === 0;

  fill("workers", (now.workers ?? []).map((worker, index) => {
    const { carrying, polling, asleep } = worker.recent;
    const silent = worker.silent_nanoseconds / 1e9;
    const small = silent >= 1 ? [`takes no turns for ${silent.toFixed(0)} s`] : [];
    return [
      cell(String(index), { name: "th", small }),
      cell(worker.cpu === undefined ? "any" : String(worker.cpu)),
      ...[carrying, polling, asleep].map((share) => number(percent(share))),
      cell(worker.queues.map(queue).join(", ")),
    ];
  }));

  fill("events", (now.events ?? []).map(({ at, level, text }) => [
    cell(new Date(at * 1000).toLocaleString()),
    cell(level, { kind: level === "info" ? "" : "bad" }),
    cell(text),
  ]));

  const up = now.ports.filter((port) => port.state === "up").length;
  const since = new Date(now.started * 1000).toLocaleString();
  element("summary").textContent = `${up} of ${now.ports.length} ports up · ${now.config} · process ${now.pid}, since ${since}`;
}

// Seconds between two statuses, by the daemon's clock where it has one.
function between(now, old) {
  if (!old || old.status.pid !== now.status.pid) return null;
  const [new_wall, old_wall] = [now, old].map(({ status }) => status.cpu?.wall_nanoseconds);
  return new_wall === undefined || old_wall === undefined ? (now.at - old.at) / 1000 : (new_wall - old_wall) / 1e9;
}

// Only a change is read out.
function say(trouble) {
  if (element("trouble").textContent !== trouble) element("trouble").textContent = trouble;
}

async function poll() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(await answer.text());
    const now = { at: performance.now(), status: await answer.json() };
    const seconds = between(now, before);
    // The same status again: another page has just asked for it.
    if (!paused && seconds !== 0) {
      show(now.status, before?.status, seconds);
      before = now;
    }
    say("");
  } catch (error) {
    say(`The daemon does not answer, so this is old: ${error.message}`);
  }
}

async function run() {
  for (;;) {
    if (!document.hidden && !paused) await poll();
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
  }
}

element("pause").addEventListener("click", () => {
  paused = !paused;
  element("pause").textContent = paused ? "Go on" : "Pause";
});

run();
