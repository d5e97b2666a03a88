// Prints the kinds that the types of a plugin define, as JSON. Not part of the component: `ostler plugin crds` runs it with
// TypeScript's folder, the folder of the SDK and the plugin's main module. It reads JSDoc or TypeScript types.
import { dirname, join, relative } from "node:path";
import { createRequire } from "node:module";

const [compiler, sdk, entry] = process.argv.slice(2);
const ts = createRequire(import.meta.url)(compiler);

/** An error of the author, with its place. */
class Problem extends Error {}
const fail = (node, message) => {
  const file = node.getSourceFile();
  const { line, character } = file.getLineAndCharacterOfPosition(node.getStart());
  throw new Problem(`${relative(dirname(entry), file.fileName)}:${line + 1}:${character + 1}: ${message}`);
};

const program = ts.createProgram([entry], {
  allowJs: true, checkJs: true, noEmit: true, strict: true, types: [], target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
  paths: { ostler: [join(sdk, "index.d.ts")], "ostler/provision": [join(sdk, "provision.d.ts")] },
});
const checker = program.getTypeChecker();
const ANY = { "x-kubernetes-preserve-unknown-fields": true };

/** The value of an expression: literals, and constants that are initialized with them. */
function valueOf(node) {
  if (ts.isArrayLiteralExpression(node)) return node.elements.map(valueOf);
  if (ts.isObjectLiteralExpression(node)) {
    return Object.fromEntries(node.properties.filter((p) => p.name).map((p) => [p.name.text, propertyValue(p)]));
  }
  const type = checker.getTypeAtLocation(node);
  if (type.isStringLiteral() || type.isNumberLiteral()) return type.value;
  if (type.flags & ts.TypeFlags.BooleanLiteral) return checker.typeToString(type) === "true";
  const initializer = ts.isIdentifier(node) && checker.getSymbolAtLocation(node)?.valueDeclaration?.initializer;
  if (initializer) return valueOf(initializer);
  fail(node, "this must be a text, a number, or a constant of this module that is one");
}

function propertyValue(property) {
  if (!ts.isShorthandPropertyAssignment(property)) return valueOf(property.initializer ?? property);
  const initializer = checker.getShorthandAssignmentValueSymbol(property)?.valueDeclaration?.initializer;
  return valueOf(initializer ?? property.name);
}

const propertyOf = (object, name) => object.properties.find((property) => property.name?.text === name);

/** The object literals of the kinds in each call of `plugin` in a file. */
function findKinds(file) {
  const found = [];
  const visit = (node) => {
    if (ts.isCallExpression(node) && ts.isIdentifier(node.expression) && node.expression.text === "plugin") {
      const [options] = node.arguments;
      let kinds = options && ts.isObjectLiteralExpression(options) ? propertyOf(options, "kinds") : undefined;
      kinds = kinds?.initializer ?? kinds?.name;
      if (kinds && ts.isIdentifier(kinds)) kinds = checker.getSymbolAtLocation(kinds)?.valueDeclaration?.initializer;
      if (kinds && ts.isArrayLiteralExpression(kinds)) {
        found.push(...kinds.elements.filter(ts.isObjectLiteralExpression));
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return found;
}

const KEYWORDS = ["minLength", "maxLength", "pattern", "format", "minimum", "maximum", "multipleOf", "minItems", "maxItems",
  "default"];

/** The text of a declaration in a line per paragraph, and the keywords of its tags: `@minLength 1`, or within a text
 * `{@minLength 1}`. */
function readTexts(symbol) {
  const keywords = {};
  const add = (name, value) => {
    if (name === "asType") keywords.type = value;
    if (!KEYWORDS.includes(name)) return;
    try {
      keywords[name] = name === "pattern" || name === "format" ? value : JSON.parse(value);
    } catch {
      keywords[name] = value;
    }
  };
  for (const tag of symbol.getJsDocTags(checker)) add(tag.name, ts.displayPartsToString(tag.text).trim());
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker));
  const plain = text.replace(/\{@(\w+)\s+((?:[^{}]|\{[^{}]*\})*)\}/g, (_, name, value) => {
    add(name, value.trim());
    return "";
  });
  const paragraphs = plain.split(/\n\s*\n/).map((paragraph) => paragraph.split(/\s+/).filter(Boolean).join(" "));
  return { description: paragraphs.filter(Boolean).join("\n\n"), keywords };
}

function withTexts(schema, symbol) {
  const { description, keywords } = readTexts(symbol);
  const made = { ...schema, ...keywords };
  if (keywords.type === "integer") made.format = keywords.format ?? "int64";
  if (description) made.description = description;
  return made;
}

/** Returns whether a type is of integers: `bigint`, or with the integers that JavaScript has as numbers, `number | bigint`. */
function isInteger(type) {
  const { Number, BigInt } = ts.TypeFlags;
  const parts = type.isUnion() ? type.types : [type];
  return parts.some((part) => part.flags & BigInt) && parts.every((part) => part.flags & (Number | BigInt));
}

/** Returns the structural schema of a type. */
function describeType(type, path, outer) {
  const { TypeFlags } = ts;
  type = checker.getNonNullableType(type);
  if (type.flags & (TypeFlags.Any | TypeFlags.Unknown)) return { ...ANY };
  if (type.flags & TypeFlags.String) return { type: "string" };
  if (type.flags & TypeFlags.Number) return { type: "number", format: "double" };
  if (isInteger(type)) return { type: "integer", format: "int64" };
  if (type.flags & TypeFlags.BooleanLike) return { type: "boolean" };
  if (type.isStringLiteral()) return { type: "string", enum: [type.value] };
  if (type.isUnion() && type.types.every((one) => one.isStringLiteral())) {
    return { type: "string", enum: type.types.map((one) => one.value) };
  }
  if (checker.isArrayType(type)) {
    const [items] = checker.getTypeArguments(type);
    return { type: "array", items: describeType(items, `${path}[]`, outer) };
  }
  const index = checker.getIndexInfoOfType(type, ts.IndexKind.String);
  const properties = checker.getPropertiesOfType(type);
  if (index && !properties.length) {
    return { type: "object", additionalProperties: describeType(index.type, `${path}{}`, outer) };
  }
  if (type.flags & TypeFlags.Object && !type.getCallSignatures().length) {
    if (outer.includes(type)) {
      fail(place(type), `${path}: the type contains itself, which no schema of a CRD can express: use any`);
    }
    return describeObject(type, properties, path, [...outer, type]);
  }
  throw new Problem(
    `${path}: no schema for the type ${checker.typeToString(type)}: use string, number, number | bigint, boolean, lists, Record<string, …>, ` +
      'texts such as "a" | "b", objects or any',
  );
}

const place = (type) => (type.aliasSymbol ?? type.symbol).declarations[0];

function describeObject(type, members, path, outer) {
  const properties = {};
  const required = [];
  for (const member of members) {
    const { name } = member;
    properties[name] = withTexts(describeType(checker.getTypeOfSymbol(member), `${path}.${name}`, outer), member);
    if (!(member.flags & ts.SymbolFlags.Optional) && properties[name].default === undefined) required.push(name);
  }
  const made = withTexts({ type: "object", properties }, type.aliasSymbol ?? type.symbol);
  return required.length ? { ...made, required } : made;
}

/** The schema of a type by its name, of those that a node can refer to. */
function describeNamed(name, node, path) {
  const scope = checker.getSymbolsInScope(node, ts.SymbolFlags.Type | ts.SymbolFlags.Alias);
  let symbol = scope.find((one) => one.name === name);
  // A typedef is an export of its module, and its local symbol stands for that.
  if (symbol) symbol = checker.getExportSymbolOfSymbol(symbol);
  if (symbol && symbol.flags & ts.SymbolFlags.Alias) symbol = checker.getAliasedSymbol(symbol);
  if (!symbol || !(symbol.flags & ts.SymbolFlags.Type)) return undefined;
  const type = checker.getDeclaredTypeOfSymbol(symbol);
  return withTexts(describeType(type, path, []), symbol);
}

function describeKind(literal) {
  const value = (name) => {
    const property = propertyOf(literal, name);
    return property && propertyValue(property);
  };
  const [group, version, kind] = ["group", "version", "kind"].map(value);
  const spec = describeNamed(`${kind}Spec`, literal, `${kind}.spec`);
  if (!spec) return [];
  return [{
    group, version, kind, plural: value("plural"), scope: value("scope") ?? "Namespaced", shortNames: value("shortNames") ?? [],
    categories: value("categories") ?? [], columns: (value("columns") ?? []).map((column) => ({ type: "string", ...column })),
    spec, status: describeNamed(`${kind}Status`, literal, `${kind}.status`),
  }];
}

/** Codes of the compiler for a name that is not defined: its type would be `any`. */
const UNDEFINED_NAMES = [2304, 2305, 2503, 2552, 2694];

try {
  const own = program.getSourceFiles().filter((file) => !file.isDeclarationFile && !/node_modules/.test(file.fileName));
  const [broken] = own.flatMap((file) => [
    ...program.getSyntacticDiagnostics(file),
    ...program.getSemanticDiagnostics(file).filter(({ code }) => UNDEFINED_NAMES.includes(code)),
  ]);
  if (broken) {
    const { line, character } = broken.file.getLineAndCharacterOfPosition(broken.start);
    const at = `${relative(dirname(entry), broken.file.fileName)}:${line + 1}:${character + 1}`;
    throw new Problem(`${at}: ${ts.flattenDiagnosticMessageText(broken.messageText, "\n")}`);
  }
  console.log(JSON.stringify(own.flatMap(findKinds).flatMap(describeKind)));
} catch (e) {
  if (!(e instanceof Problem)) throw e;
  console.error(e.message);
  process.exitCode = 1;
}
