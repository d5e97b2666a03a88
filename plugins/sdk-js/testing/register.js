// Lets Node load a plugin for its tests: `node --import ostler/register --test`. The functions of the host are those of the
// `TestHost` of "ostler/testing" that was made last.
import module from "node:module";

const HOST = Symbol.for("ostler.testing");
const { console } = globalThis;
const { now } = Date;

/** What the plugin's module may use before there is a host. */
const functions = {
  log: { write: (level, message) => console[level === "trace" ? "debug" : level](message) },
  clock: { now: () => BigInt(now()), remaining: () => 60_000n },
};

const interfaceOf = (name) =>
  new Proxy({}, {
    get: (_, method) => (...parameters) => {
      const host = globalThis[HOST].current ?? functions;
      const found = host[name]?.[method];
      if (!found) throw new Error(`${name}.${method} was called without a host: make a TestHost first`);
      return found(...parameters);
    },
  });

globalThis[HOST] = { current: undefined, console, interfaces: new Proxy({}, { get: (_, name) => interfaceOf(name) }) };

const hooks = `
const prefix = "ostler:plugin/";
const source = (name) =>
  "export default globalThis[Symbol.for('ostler.testing')].interfaces[" + JSON.stringify(name) + "];";
const isOurs = (specifier) => specifier.startsWith(prefix);
const found = (specifier) => ({
  url: "data:text/javascript," + encodeURIComponent(source(specifier.slice(prefix.length).split("@")[0])),
  shortCircuit: true,
});
`;
if (module.registerHooks) {
  const { isOurs, found } = await import(`data:text/javascript,${encodeURIComponent(`${hooks} export { isOurs, found };`)}`);
  module.registerHooks({ resolve: (specifier, context, next) => (isOurs(specifier) ? found(specifier) : next(specifier, context)) });
} else {
  const resolve = "export const resolve = (specifier, context, next) => isOurs(specifier) ? found(specifier) : next(specifier, context);";
  module.register(`data:text/javascript,${encodeURIComponent(hooks + resolve)}`);
}
