// Asks api/status every second and shows it. Rates are differences of two answers: the server keeps
// nothing for a viewer. Whatever comes from the server is text, never markup.
"use strict";

const POLL_MS = 1000;
const PATIENCE_MS = 4000; // for one answer
const MEAN_SECONDS = 5; // of the live numbers
const LINE_SECONDS = 120;
const STAGES = ["receive", "decode", "queue", "copy_in", "kernel", "verify", "copy_out", "send"];
const TONES = { ready: "good", draining: "warn", starting: "warn" };

let answers = []; // of the last MEAN_SECONDS and a bit, oldest first
let points = []; // what the lines show: {time, rate, latency, tflops}
let asking = false;
let heardAt = null; // when the last answer came, by our clock

// ---- Numbers as people read them ----

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

function number(value) {
  if (value === null) return "–";
  return Math.abs(value) >= 1000 ? whole.format(value) : three.format(value);
}

function seconds(value) {
  if (value === null) return "–";
  if (value > 0 && value < 0.9995e-3) return `${three.format(value * 1e6)} µs`;
  return value > 0 && value < 0.9995 ? `${three.format(value * 1e3)} ms` : `${number(value)} s`;
}

function bytes(value) {
  if (value === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${number(value)} ${units[unit]}`;
}

// 1,234 or 6.48 × 10¹⁵
function large(value) {
  if (value < 1e9) return number(value);
  const [digits, power] = value.toExponential(2).split("e+");
  return `${digits} × 10${[...power].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}

function percent(value) {
  return value === null ? "–" : `${number(100 * value)} %`;
}

// The two largest units of a time.
function age(value) {
  const left = Math.max(0, Math.round(value));
  const parts = [
    [Math.floor(left / 86400), "d"],
    [Math.floor(left / 3600) % 24, "h"],
    [Math.floor(left / 60) % 60, "min"],
    [left % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

// ---- What two answers tell ----

const sum = (object) => Object.values(object).reduce((total, value) => total + value, 0);
const ratio = (above, below) => (below > 0 ? above / below : null);
const notOk = (codes) => sum(codes) - (codes.OK ?? 0);
const failures = (status) => sum(Object.values(status.requests.by_method).map(notOk));

// As PromQL's histogram_quantile: values lie evenly in their bucket.
function quantile(bounds, cumulative, q) {
  const rank = q * cumulative[cumulative.length - 1];
  if (rank === 0) return null;
  const at = cumulative.findIndex((count) => count >= rank);
  if (at >= bounds.length) return bounds[bounds.length - 1];
  const below = at > 0 ? cumulative[at - 1] : 0;
  const lower = at > 0 ? bounds[at - 1] : 0;
  return lower + ((bounds[at] - lower) * (rank - below)) / (cumulative[at] - below);
}

// The live numbers between the oldest and the newest answer; null where nothing can be said.
function live() {
  const first = answers[0];
  const last = answers[answers.length - 1];
  const time = last.time - first.time;
  const grown = (pick) => pick(last) - pick(first);
  const rate = (pick) => (time > 0 ? grown(pick) / time : null);
  const flops = grown((status) => status.flops);
  const busy = grown((status) => status.kernel_seconds);
  const now = last.latency_seconds.by_method.Matmul.cumulative;
  const then = first.latency_seconds.by_method.Matmul.cumulative;
  const matmuls = now.map((count, i) => count - then[i]);
  const latency = (q) => quantile(last.latency_seconds.bounds, matmuls, q);
  const stage = (name) =>
    ratio(
      grown((status) => status.stage_seconds[name].sum),
      grown((status) => status.stage_seconds[name].count),
    );
  return {
    time: last.time,
    rate: rate((status) => status.requests.total),
    failed: rate(failures),
    latency: latency(0.5),
    p90: latency(0.9),
    p99: latency(0.99),
    tflops: ratio(flops, busy * 1e12),
    busy: time > 0 ? busy / time : null,
    launches: rate((status) => status.batch.launches),
    batch: ratio(
      grown((status) => status.batch.requests),
      grown((status) => status.batch.launches),
    ),
    cores: rate((status) => status.process.cpu_seconds),
    stages: Object.fromEntries(STAGES.map((name) => [name, stage(name)])),
  };
}

// ---- Into the page ----

const $ = (id) => document.getElementById(id);

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// `value` goes along as the machine's form of `text`.
function put(id, value, text) {
  setText($(id), text);
  $(id).value = value === null ? "" : String(value);
}

function make(tag, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// A line of a list; `share`, from 0 to 1, is a bar under it.
function line(name, text, { value = "", share = null, bad = false } = {}) {
  const row = make("div");
  const figure = make("dd", "", bad ? { "data-tone": "bad" } : {});
  figure.append(make("data", text, { value, "data-name": name }));
  row.append(make("dt", name), figure);
  if (share !== null) {
    const bar = make("dd", "", { class: "bar", "aria-hidden": "true" });
    bar.append(make("span"));
    bar.firstChild.style.width = `${100 * Math.min(1, share)}%`;
    row.append(bar);
  }
  return row;
}

function showAbout(status) {
  const { version, commit, backend, cuda } = status;
  setText($("device"), status.device.name);
  setText(
    $("about"),
    `version ${version} · commit ${commit} · ${backend}${cuda ? ` · CUDA ${cuda}` : ""}` +
      ` · up ${age(status.uptime_seconds)}`,
  );
  setText($("state"), status.readiness);
  $("state").dataset.tone = TONES[status.readiness] ?? "bad";
  setText($("trouble-text"), status.reason ? `Not ready: ${status.reason}.` : "");
  setText($("trouble-ago"), "");
  $("trouble").dataset.tone = "warn";
  $("trouble").hidden = !status.reason;
  $("debug-link").hidden = !status.debug_requests;
  document.title = `${status.readiness} · tcgemm ${status.device.name}`;
}

function showNumbers(status) {
  put("inflight", status.inflight, number(status.inflight));
  put("queue-depth", status.queue.depth, number(status.queue.depth));
  put("queue-bytes", status.queue.bytes, bytes(status.queue.bytes));
  const memory = status.process.resident_memory_bytes;
  put("process-bytes", memory, bytes(memory));
  put("open-fds", status.process.open_fds, number(status.process.open_fds));
  put("calls", status.requests.total, number(status.requests.total));
  put("launches", status.batch.launches, number(status.batch.launches));
  put("mean-batch", status.batch.mean, number(status.batch.mean));
  put("kernel-seconds", status.kernel_seconds, seconds(status.kernel_seconds));
  put("flops", status.flops, large(status.flops));
  put("mean-tflops", status.tflops, number(status.tflops));
  put("resident-matrices", status.resident.matrices, number(status.resident.matrices));
  put("resident-bytes", status.resident.bytes, bytes(status.resident.bytes));
}

function showLive(now) {
  put("rate", now.rate, number(now.rate));
  put("failed-rate", now.failed, number(now.failed));
  put("latency", now.latency, seconds(now.latency));
  put("latency-p90", now.p90, seconds(now.p90));
  put("latency-p99", now.p99, seconds(now.p99));
  put("tflops", now.tflops, number(now.tflops));
  put("busy", now.busy, percent(now.busy));
  put("launch-rate", now.launches, number(now.launches));
  put("live-batch", now.batch, number(now.batch));
  put("cores", now.cores, number(now.cores));
  const longest = Math.max(...Object.values(now.stages), 1e-9);
  $("stages").replaceChildren(
    ...STAGES.map((name) => {
      const value = now.stages[name];
      return line(name.replace("_", " "), seconds(value), {
        value: value ?? "",
        share: (value ?? 0) / longest,
      });
    }),
  );
}

function showMemory(status) {
  $("pools").replaceChildren(
    ...Object.entries(status.pools)
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([name, { used, free }]) => {
        const all = used + free;
        const text = all > 0 ? `${bytes(used)} of ${bytes(all)}` : "none";
        return line(name, text, { value: used, share: all > 0 ? used / all : 0 });
      }),
  );
}

function showMethods(status) {
  const rows = [];
  for (const [method, codes] of Object.entries(status.requests.by_method).sort()) {
    if (sum(codes) === 0) continue;
    const times = status.latency_seconds.by_method[method];
    const row = make("tr", "", { "data-method": method });
    const cell = (value, text) => {
      row.append(make("td"));
      row.lastChild.append(make("data", text, { value: value ?? "" }));
    };
    row.append(make("th", method, { scope: "row" }));
    for (const count of [codes.OK ?? 0, notOk(codes)]) cell(count, number(count));
    for (const name of ["p50", "p90", "p99"]) cell(times[name], seconds(times[name]));
    rows.push(row);
    if (notOk(codes) === 0) continue;
    const others = Object.entries(codes).filter(([code]) => code !== "OK");
    const text = others.map(([code, count]) => `${number(count)} ${code}`).join(", ");
    rows.push(make("tr", "", { class: "codes", "data-method": method }));
    rows[rows.length - 1].append(make("td", text, { colspan: 6 }));
  }
  $("methods").replaceChildren(...rows);
  $("no-calls").hidden = rows.length > 0;
  $("methods").closest("table").hidden = rows.length === 0;
}

// The entries that are not 0, or one line that says so.
function showCounts(id, counts) {
  const some = counts.filter(([, count]) => count > 0);
  const rows = some.map(([name, value, bad]) => line(name, number(value), { value, bad }));
  $(id).replaceChildren(...(rows.length > 0 ? rows : [line("none", "0", { value: 0 })]));
}

function showTrouble(status) {
  const named = (prefix, object, bad = false) =>
    Object.entries(object).map(([name, count]) => [prefix + name.replace("_", " "), count, bad]);
  showCounts("refused", [
    ...named("refused: ", status.rejected),
    ...named("cancelled in: ", status.cancelled),
  ]);
  const { ok, mismatch, skipped } = status.verification;
  showCounts("faults", [
    ...named("device error: ", status.device_errors, true),
    ["results found wrong", mismatch, true],
    ["results found right", ok],
    ["results not checked", skipped],
    ["results with NaN or Inf", status.nonfinite_outputs],
  ]);
}

// ---- The lines ----

function draw(name, format) {
  const end = points[points.length - 1].time;
  const peak = Math.max(...points.map((point) => point[name] ?? 0));
  setText($(`${name}-peak`), peak > 0 ? format(peak) : "–");
  let stroke = "";
  let area = "";
  let open = null; // where the piece that is being drawn began
  const close = (x) => {
    if (open !== null) area += `L${x} 48L${open} 48Z`;
    open = null;
  };
  let x = "0";
  for (const point of points) {
    const value = point[name];
    if (value === null) {
      close(x);
      continue;
    }
    x = (240 * (1 - (end - point.time) / LINE_SECONDS)).toFixed(1);
    const y = (peak > 0 ? 46 - (44 * value) / peak : 46).toFixed(1);
    const step = `${open === null ? "M" : "L"}${x} ${y}`;
    open ??= x;
    stroke += step;
    area += step;
  }
  close(x);
  $(`${name}-line`).querySelector(".line").setAttribute("d", stroke);
  $(`${name}-line`).querySelector(".area").setAttribute("d", area);
}

// ---- Asking ----

function take(status) {
  const last = answers[answers.length - 1];
  // Another process, whose counters began again, or a clock that was set back.
  if (last && (last.start_time !== status.start_time || last.time >= status.time)) {
    answers = [];
    points = [];
  }
  answers.push(status);
  while (answers.length > 2 && answers[1].time <= status.time - MEAN_SECONDS) answers.shift();
  const now = live();
  points.push(now);
  while (points[0].time < now.time - LINE_SECONDS) points.shift();
  showAbout(status);
  showNumbers(status);
  showLive(now);
  showMemory(status);
  showMethods(status);
  showTrouble(status);
  draw("rate", number);
  draw("latency", seconds);
  draw("tflops", number);
}

function showSilence() {
  setText($("state"), "no answer");
  $("state").dataset.tone = "bad";
  $("trouble").dataset.tone = "bad";
  $("trouble").hidden = false;
  document.body.dataset.stale = "";
  document.title = "no answer · tcgemm";
  if (heardAt === null) {
    setText($("trouble-text"), "No answer from the server yet.");
    return;
  }
  const since = new Date(heardAt).toLocaleTimeString("en-GB");
  setText($("trouble-text"), `No answer since ${since}. The numbers are from then.`);
  // Apart from the text, so that nobody has it read aloud every second.
  setText($("trouble-ago"), `(${age((Date.now() - heardAt) / 1000)} ago)`);
}

async function ask() {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const answer = await fetch("api/status", { cache: "no-store", signal });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

async function watch() {
  setTimeout(watch, POLL_MS);
  if (asking) return;
  asking = true;
  const status = await ask().catch(() => null);
  asking = false;
  if (status === null) {
    showSilence();
    return;
  }
  heardAt = Date.now();
  delete document.body.dataset.stale;
  take(status);
}

watch();
