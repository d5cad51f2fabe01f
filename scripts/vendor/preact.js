export { batch, computed, effect, signal, useSignalEffect } from "@preact/signals";
export { html } from "htm/preact";
export { render } from "preact";
export { useEffect, useRef, useState } from "preact/hooks";
