// Selectors of lists: by label, and by field.

/** Returns a function that evaluates selectors; throws an error with the part that is wrong. */
export function parseSelectors(labels, fields) {
  const requirements = [
    ...split(labels ?? "").map((part) => parseLabel(part.trim())).map((holds) => ({ metadata }) => holds(metadata?.labels ?? {})),
    ...(fields?.trim() ? fields.split(",").map(parseField) : []),
  ];
  return (object) => requirements.every((holds) => holds(object));
}

/** Splits at commas that are not inside of parentheses. */
function split(text) {
  const parts = [];
  let [start, depth] = [0, 0];
  [...text].forEach((letter, i) => {
    if (letter === "(" && depth === 0) depth = 1;
    else if (letter === ")" && depth === 1) depth = 0;
    else if (letter === "(" || letter === ")") throw new Error(`unbalanced parenthesis at \`${text.slice(i)}\``);
    else if (letter === "," && depth === 0) {
      parts.push(text.slice(start, i));
      start = i + 1;
    }
  });
  if (depth) throw new Error(`unbalanced parenthesis at \`${text}\``);
  return text.trim() ? [...parts, text.slice(start)] : [];
}

const KEY = /^([a-z0-9.-]+\/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$/;
const INTEGER = /^[+-]?\d+$/;

function parseLabel(part) {
  let [key, operator, values] = [part, "exists", []];
  const set = part.match(/^(\S+)\s+(in|notin)\s*\(([^()]*)\)$/);
  const compared = part.match(/^(.*?)(>|<|!=|==|=)(.*)$/s);
  if (part.startsWith("!")) [key, operator] = [part.slice(1).trim(), "absent"];
  else if (set) [key, operator, values] = [set[1], set[2], set[3].split(",").map((value) => value.trim())];
  else if (compared) [key, operator, values] = [compared[1].trim(), compared[2], [compared[3].trim()]];
  if (!KEY.test(key)) throw new Error(`not the key of a label at \`${part}\``);
  if (["<", ">"].includes(operator) && !INTEGER.test(values[0])) throw new Error(`not a whole number at \`${part}\``);
  return (labels) => {
    const exists = Object.hasOwn(labels, key);
    const value = labels[key];
    switch (operator) {
      case "exists": return exists;
      case "absent": return !exists;
      case "notin": case "!=": return !exists || !values.includes(value);
      case ">": return exists && INTEGER.test(value) && BigInt(value) > BigInt(values[0]);
      case "<": return exists && INTEGER.test(value) && BigInt(value) < BigInt(values[0]);
      default: return exists && values.includes(value);
    }
  };
}

/** Parses a comparison of a field. A field that is missing counts as empty. */
function parseField(part) {
  const found = part.match(/^(.*?)(!=|==|=)(.*)$/s);
  if (!found) throw new Error(`\`=\` or \`!=\` is missing at \`${part}\``);
  const [path, operator, value] = [found[1].trim(), found[2], found[3].trim()];
  const fields = path.split(".");
  if (fields.includes("") || /\s/.test(path)) throw new Error(`not the path of a field at \`${part}\``);
  return (object) => {
    const there = fields.reduce((inner, field) => inner?.[field], object) ?? "";
    const text = typeof there === "object" ? JSON.stringify(there) : `${there}`;
    return (text === value) === (operator !== "!=");
  };
}
