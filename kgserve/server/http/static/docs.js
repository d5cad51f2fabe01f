// Shows /openapi.json with Swagger UI, and asks for a key where the server requires one.

const KEY = "kgserve-key";
const PLACEHOLDER = "Bearer $KGSERVE_KEY";

// Kept until this tab is closed, and sent to this server only.
const key = () => sessionStorage.getItem(KEY) ?? "";
const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function askForKey(note) {
  document.getElementById("access").hidden = false;
  document.getElementById("access-note").textContent = note;
}

function use(text) {
  if (!/^[\x21-\x7e]+$/.test(text)) return askForKey("A key starts with kgs_ and contains only letters, digits, - and _.");
  sessionStorage.setItem(KEY, text);
  location.reload();
}

function forget() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

// The curl line shows a placeholder; the key itself is added when the request is sent.
function prepare(request) {
  if (!key()) return request;
  request.headers.Authorization = PLACEHOLDER;
  request.userFetch = (url, sent) => fetch(url, { ...sent, headers: { ...sent.headers, ...authorization() } });
  return request;
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
  SwaggerUIBundle({
    spec: await response.json(),
    dom_id: "#operations",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    filter: true,
    requestInterceptor: prepare,
    tryItOutEnabled: true,
    validatorUrl: null,
  });
  status.hidden = true;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const applyScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", applyScheme);
applyScheme();

document.getElementById("access").addEventListener("submit", (event) => {
  event.preventDefault();
  use(document.getElementById("key").value.trim());
});
document.getElementById("forget").addEventListener("click", forget);
show().catch((error) => {
  document.getElementById("status").textContent = `The description could not be shown: ${error.message}`;
});
