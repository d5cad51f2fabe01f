// Renders /openapi.json. Everything is built from text nodes: no description can become markup.

const METHODS = ["get", "put", "post", "patch", "delete"];
const SHOWN_CHARACTERS = 200_000;
const KEY = "kgserve-key";

// Kept until this tab is closed, and sent to this server only.
const key = () => sessionStorage.getItem(KEY) ?? "";
const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat());
  return made;
}

function paragraph(text) {
  const parts = text.split(/`+([^`]+)`+/);
  return element("p", {}, parts.map((part, index) => (index % 2 ? element("code", {}, part) : part)));
}

function prose(text) {
  return element("div", {}, text.split(/\n\n+/).map(paragraph));
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

class Description {
  constructor(document) {
    this.document = document;
  }

  resolve(item) {
    if (!item?.$ref) return item;
    return item.$ref.slice(2).split("/").reduce((place, key) => place[key], this.document);
  }

  operations(tag) {
    return Object.entries(this.document.paths).flatMap(([path, item]) =>
      METHODS.filter((method) => item[method]?.tags.includes(tag)).map((method) => ({ path, method, ...item[method] })),
    );
  }

  typeOf(schema) {
    if (schema.$ref) return [this.link(schema.$ref)];
    if (schema.anyOf) return schema.anyOf.flatMap((one, index) => [index ? " or " : "", ...this.typeOf(one)]);
    if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" or ")];
    if (schema.type === "array") return ["list of ", ...this.typeOf(schema.items ?? {})];
    return [schema.type ?? "anything"];
  }

  link(reference) {
    const name = reference.split("/").at(-1);
    return element("a", { href: `#schema-${name}` }, name);
  }
}

const BOUNDS = [
  ["minimum", "at least "], ["maximum", "at most "], ["minLength", "length at least "], ["maxLength", "length at most "],
  ["maxItems", "items at most "], ["pattern", "pattern "], ["default", "default "],
];

function notes(schema) {
  const shown = BOUNDS.filter(([key]) => schema[key] !== undefined && schema[key] !== null);
  return shown.map(([key, words]) => words + (typeof schema[key] === "string" ? schema[key] : JSON.stringify(schema[key]))).join("; ");
}

function table(caption, rows) {
  const head = ["Name", "Type", "Meaning"].map((text) => element("th", { scope: "col" }, text));
  return element("div", { class: "scroll" },
    element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)));
}

function row(description, name, schema, text, needed) {
  const label = needed ? [element("code", {}, name), " ", element("span", { class: "needed" }, "required")] : [element("code", {}, name)];
  const meaning = [text, notes(schema)].filter(Boolean).join(" · ");
  return element("tr", {}, element("th", { scope: "row" }, label), element("td", {}, description.typeOf(schema)), element("td", {}, meaning));
}

function schemaTable(description, name, schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([field, one]) =>
    row(description, field, one, one.description ?? "", schema.required?.includes(field)));
  return element("section", { id: `schema-${name}` }, element("h4", {}, name), prose(schema.description ?? ""), table(`Fields of ${name}`, rows));
}

function answers(description, operation) {
  return Object.entries(operation.responses).map(([status, reference]) => {
    const response = description.resolve(reference);
    const [media, content] = Object.entries(response.content)[0];
    const type = content.schema.$ref ? description.link(content.schema.$ref) : media;
    const heading = element("p", {}, element("strong", {}, status), ` ${response.description} — `, type);
    return status < "300" ? element("div", {}, heading, element("pre", { tabindex: "0" }, pretty(content.example))) : heading;
  });
}

function requestOf(operation, form) {
  const values = Object.fromEntries(new FormData(form));
  let path = operation.path;
  const query = new URLSearchParams();
  for (const parameter of operation.parameters) {
    const value = values[`${parameter.in}:${parameter.name}`] ?? "";
    if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value !== "") query.set(parameter.name, value);
  }
  const media = operation.requestBody && Object.keys(operation.requestBody.content)[0];
  return { url: location.origin + path + (String(query) && `?${query}`), method: operation.method.toUpperCase(), media, body: values.body };
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curl({ url, method, media, body }) {
  const start = method === "GET" ? "curl" : `curl -X ${method}`;
  const needed = key() ? ` \\\n  -H "Authorization: Bearer $KGSERVE_KEY"` : "";
  const tail = media ? ` \\\n  -H ${quoted(`Content-Type: ${media}`)} \\\n  --data-binary ${quoted(body)}` : "";
  return `${start} ${quoted(url)}${needed}${tail}`;
}

async function send({ url, method, media, body }, output) {
  output.textContent = "Sending…";
  const started = performance.now();
  try {
    const headers = { ...authorization(), ...(media ? { "Content-Type": media } : {}) };
    const response = await fetch(url, { method, body: media ? body : undefined, headers });
    const text = await response.text();
    const isJson = /json$/.test(response.headers.get("content-type") ?? "");
    const shown = isJson ? pretty(JSON.parse(text)) : text;
    const cut = shown.length > SHOWN_CHARACTERS ? `${shown.slice(0, SHOWN_CHARACTERS)}\n… ${shown.length - SHOWN_CHARACTERS} more characters` : shown;
    output.textContent = `${response.status} ${response.statusText} · ${Math.round(performance.now() - started)} ms\n\n${cut}`;
  } catch (error) {
    output.textContent = `No answer: ${error.message}`;
  }
}

function tryIt(operation) {
  const line = element("pre", { tabindex: "0", "aria-label": "The same with curl" });
  const output = element("pre", { tabindex: "0", role: "status", "aria-label": "Answer", hidden: "" });
  const fields = operation.parameters.map((parameter) =>
    element("label", {}, `${parameter.name}${parameter.required ? "" : " (optional)"}`,
      element("input", { name: `${parameter.in}:${parameter.name}`, value: parameter.example ?? "", autocomplete: "off", spellcheck: "false" })));
  const content = operation.requestBody && Object.values(operation.requestBody.content)[0];
  if (content) {
    const area = element("textarea", { name: "body", spellcheck: "false" });
    area.value = pretty(content.example);
    fields.push(element("label", {}, "Body", area));
  }
  const copy = element("button", { type: "button", class: "plain", onclick: () => navigator.clipboard?.writeText(line.textContent) }, "Copy curl line");
  const form = element("form", {}, fields, line, element("div", { class: "row" }, element("button", {}, "Send"), copy), output);
  const refresh = () => { line.textContent = curl(requestOf(operation, form)); };
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    output.hidden = false;
    send(requestOf(operation, form), output);
  });
  refresh();
  return form;
}

function operationPanel(description, operation) {
  const parameters = operation.parameters.map((one) => row(description, one.name, one.schema, one.description, one.required));
  const request = operation.requestBody && Object.values(operation.requestBody.content)[0];
  const content = element("div", {}, prose(operation.description),
    parameters.length ? table("Parameters", parameters) : [],
    request?.schema.$ref ? element("p", {}, "Body: ", description.link(request.schema.$ref)) : [],
    element("h4", {}, "Answers"), answers(description, operation), element("h4", {}, "Try it"), tryIt(operation));
  return element("details", { class: "operation", id: operation.operationId },
    element("summary", {}, element("h3", {}, element("span", { class: `method ${operation.method}` }, operation.method.toUpperCase()),
      " ", element("span", { class: "path" }, operation.path)), element("span", { class: "summary" }, operation.summary)), content);
}

function contents(groups) {
  return groups.map(([tag, operations]) => [
    element("strong", {}, tag.name),
    element("ul", {}, operations.map((one) => element("li", {}, element("a", { href: `#${one.operationId}` }, one.summary)))),
  ]).flat();
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

function askForKey(note) {
  document.getElementById("access").hidden = false;
  document.getElementById("access-note").textContent = note;
}

function use(text) {
  if (!/^[\x21-\x7e]+$/.test(text)) return askForKey("A key starts with kgs_ and contains only letters, digits, - and _.");
  sessionStorage.setItem(KEY, text);
  document.getElementById("key").value = "";
  load();
}

function forget() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

async function show() {
  const status = document.getElementById("status");
  const response = await fetch("/openapi.json", { headers: authorization() });
  if (response.status === 401) {
    askForKey(key() ? "This key is not valid. It may have expired or been revoked." : "This server requires a key to show its API description.");
    sessionStorage.removeItem(KEY);
    status.textContent = "Enter a key.";
    return;
  }
  if (!response.ok) throw new Error(`openapi.json answered ${response.status}`);
  if (key()) askForKey("The key is kept until this tab is closed.");
  const description = new Description(await response.json());
  const { info, tags, components } = description.document;
  const groups = tags.map((tag) => [tag, description.operations(tag.name)]);
  document.getElementById("version").textContent = info.version;
  document.getElementById("about").textContent = info.description;
  document.getElementById("contents").append(...contents(groups));
  document.getElementById("operations").append(
    ...groups.flatMap(([tag, operations]) => [element("h2", {}, tag.name), prose(tag.description), ...operations.map((one) => operationPanel(description, one))]),
    element("h2", {}, "Schemas"), ...Object.entries(components.schemas).map(([name, schema]) => schemaTable(description, name, schema)));
  status.hidden = true;
  addEventListener("hashchange", openTarget);
  openTarget();
}

let loaded = false;

function load() {
  if (loaded) return location.reload();
  show().then(() => { loaded = document.getElementById("status").hidden; }).catch((error) => {
    document.getElementById("status").textContent = `The description could not be shown: ${error.message}`;
  });
}

document.getElementById("access").addEventListener("submit", (event) => {
  event.preventDefault();
  use(document.getElementById("key").value.trim());
});
document.getElementById("forget").addEventListener("click", forget);
load();
