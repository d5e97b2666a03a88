//! Steps: a map with the fields of a core step (task, get, put, …) and of its modifiers.

use serde_json::{Map, Value};

use super::schema::{ConfigReader, Field, PARAMS, STEPS, Struct, TAGS, TASK, TEXTS, Type};

/// Modifiers in the order in which Concourse looks for them, before the core steps, of which the first found is used.
static MODIFIERS: [(&str, Type); 8] = [
    ("ensure", Type::Step),
    ("on_error", Type::Step),
    ("on_abort", Type::Step),
    ("on_failure", Type::Step),
    ("on_success", Type::Step),
    ("across", Type::Any),
    ("attempts", Type::Number),
    ("timeout", Type::Text),
];

const fn keep_empty(name: &'static str, kind: Type) -> Field {
    Field(name, kind, true)
}

const fn omit_empty(name: &'static str, kind: Type) -> Field {
    Field(name, kind, false)
}

static CORES: [Struct; 9] = [
    Struct(
        "run",
        &[
            keep_empty("run", Type::Text),
            omit_empty("type", Type::Text),
            omit_empty("params", PARAMS),
            omit_empty("privileged", Type::Flag),
            omit_empty("tags", TAGS),
        ],
    ),
    Struct(
        "task",
        &[
            keep_empty("task", Type::Text),
            omit_empty("privileged", Type::Flag),
            omit_empty("hermetic", Type::Flag),
            omit_empty("file", Type::Text),
            omit_empty("container_limits", Type::Any),
            omit_empty("config", Type::Struct(&TASK)),
            omit_empty("params", Type::Texts("atc.TaskEnv")),
            omit_empty("vars", PARAMS),
            omit_empty("tags", TAGS),
            omit_empty("input_mapping", Type::Texts("map[string]string")),
            omit_empty("output_mapping", Type::Texts("map[string]string")),
            omit_empty("image", Type::Text),
        ],
    ),
    Struct(
        "put",
        &[
            keep_empty("put", Type::Text),
            omit_empty("resource", Type::Text),
            omit_empty("params", PARAMS),
            omit_empty("inputs", Type::Any),
            omit_empty("tags", TAGS),
            omit_empty("get_params", PARAMS),
            omit_empty("no_get", Type::Flag),
            omit_empty("expose_build_created_by", Type::Flag),
        ],
    ),
    Struct(
        "get",
        &[
            keep_empty("get", Type::Text),
            omit_empty("resource", Type::Text),
            omit_empty("version", Type::Any),
            omit_empty("params", PARAMS),
            omit_empty("passed", TEXTS),
            omit_empty("trigger", Type::Flag),
            omit_empty("tags", TAGS),
        ],
    ),
    Struct(
        "set_pipeline",
        &[
            keep_empty("set_pipeline", Type::Text),
            omit_empty("file", Type::Text),
            omit_empty("team", Type::Text),
            omit_empty("vars", PARAMS),
            omit_empty("var_files", TEXTS),
            omit_empty("instance_vars", PARAMS),
        ],
    ),
    Struct(
        "load_var",
        &[
            keep_empty("load_var", Type::Text),
            omit_empty("file", Type::Text),
            omit_empty("format", Type::Text),
            omit_empty("reveal", Type::Flag),
        ],
    ),
    Struct("try", &[keep_empty("try", Type::Step)]),
    Struct("do", &[keep_empty("do", STEPS)]),
    Struct("in_parallel", &[keep_empty("in_parallel", Type::Parallel)]),
];

/// Returns the name of a step's core.
pub(super) fn core_kind(step: &Map<String, Value>) -> Option<&'static str> {
    CORES.iter().map(|c| c.0).find(|name| step.contains_key(*name))
}

/// Returns the fields that a step may not have.
pub(super) fn unknown_fields(step: &Map<String, Value>) -> Vec<&str> {
    let fields = CORES
        .iter()
        .find(|c| step.contains_key(c.0))
        .map_or(&[][..], |c| c.1);
    let known = |key: &str| MODIFIERS.iter().any(|m| m.0 == key) || fields.iter().any(|f| f.0 == key);
    step.keys()
        .map(String::as_str)
        .filter(|key| !known(key))
        .collect()
}

/// Reads one step. Unknown fields are kept, because validation reports them.
pub(super) fn read_step(value: Value) -> Result<Value, String> {
    let Value::Object(mut map) = value else {
        return Err("json: cannot unmarshal step: not an object".into());
    };
    let modified = MODIFIERS.iter().any(|m| map.contains_key(m.0));
    let Some(core) = CORES.iter().find(|c| map.contains_key(c.0)) else {
        return Err(if modified {
            "no core step type declared (e.g. get, put, task, etc.)"
        } else {
            "no step configured"
        }
        .into());
    };
    let reader = |owner| ConfigReader {
        strict: false,
        path: Vec::new(),
        owner,
    };
    let mut written = Map::new();
    for (name, wanted) in &MODIFIERS {
        if let Some(value) = map.remove(*name) {
            let value = reader("")
                .read_value(value, *wanted)
                .map_err(|e| format!("malformed {name} step: {e}"))?;
            written.insert((*name).to_owned(), value);
        }
    }
    let (known, unknown): (Map<_, _>, Map<_, _>) = map
        .into_iter()
        .partition(|(key, _)| core.1.iter().any(|f| f.0 == key));
    let known = reader(core.0)
        .read_struct(known.into(), core, core.0)
        .map_err(|e| format!("malformed {} step: {e}", core.0))?;
    if let Value::Object(known) = known {
        written.extend(known);
    }
    written.extend(unknown);
    Ok(Value::Object(written))
}

/// Returns the resource of a get or put step.
pub fn step_resource(step: &Value) -> Option<&str> {
    let name = step.get("put").or_else(|| step.get("get"))?.as_str()?;
    Some(step["resource"].as_str().unwrap_or(name))
}

/// Returns the direct children of a step, including hooks.
pub(super) fn child_steps(step: &Value) -> impl Iterator<Item = &Value> {
    let hooks = [
        "try",
        "on_success",
        "on_failure",
        "on_abort",
        "on_error",
        "ensure",
    ]
    .into_iter()
    .filter_map(|k| step.get(k));
    let lists = [&step["do"], &step["in_parallel"]["steps"], &step["plan"]];
    lists
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .chain(hooks)
}

/// Visits every step of a job or a step, depth first.
pub fn visit_steps<'a>(of: &'a Value, visit: &mut dyn FnMut(&'a Value)) {
    for step in child_steps(of) {
        visit(step);
        visit_steps(step, visit);
    }
}
