//! Steps: a core step (task, get, put, …) and modifiers around it, all in one map.

use serde_json::{Map, Value};

use super::schema::{Field, PARAMS, Reader, STEPS, Struct, TAGS, TASK, TEXTS, Type};

/// Modifiers first, in the order Concourse looks for them; then the core steps, of which the first found counts.
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

const fn key(name: &'static str, kind: Type) -> Field {
    Field(name, kind, true)
}

const fn omit(name: &'static str, kind: Type) -> Field {
    Field(name, kind, false)
}

static CORES: [Struct; 9] = [
    Struct(
        "run",
        &[
            key("run", Type::Text),
            omit("type", Type::Text),
            omit("params", PARAMS),
            omit("privileged", Type::Flag),
            omit("tags", TAGS),
        ],
    ),
    Struct(
        "task",
        &[
            key("task", Type::Text),
            omit("privileged", Type::Flag),
            omit("hermetic", Type::Flag),
            omit("file", Type::Text),
            omit("container_limits", Type::Any),
            omit("config", Type::Struct(&TASK)),
            omit("params", Type::Texts("atc.TaskEnv")),
            omit("vars", PARAMS),
            omit("tags", TAGS),
            omit("input_mapping", Type::Texts("map[string]string")),
            omit("output_mapping", Type::Texts("map[string]string")),
            omit("image", Type::Text),
        ],
    ),
    Struct(
        "put",
        &[
            key("put", Type::Text),
            omit("resource", Type::Text),
            omit("params", PARAMS),
            omit("inputs", Type::Any),
            omit("tags", TAGS),
            omit("get_params", PARAMS),
            omit("no_get", Type::Flag),
            omit("expose_build_created_by", Type::Flag),
        ],
    ),
    Struct(
        "get",
        &[
            key("get", Type::Text),
            omit("resource", Type::Text),
            omit("version", Type::Any),
            omit("params", PARAMS),
            omit("passed", TEXTS),
            omit("trigger", Type::Flag),
            omit("tags", TAGS),
        ],
    ),
    Struct(
        "set_pipeline",
        &[
            key("set_pipeline", Type::Text),
            omit("file", Type::Text),
            omit("team", Type::Text),
            omit("vars", PARAMS),
            omit("var_files", TEXTS),
            omit("instance_vars", PARAMS),
        ],
    ),
    Struct(
        "load_var",
        &[
            key("load_var", Type::Text),
            omit("file", Type::Text),
            omit("format", Type::Text),
            omit("reveal", Type::Flag),
        ],
    ),
    Struct("try", &[key("try", Type::Step)]),
    Struct("do", &[key("do", STEPS)]),
    Struct("in_parallel", &[key("in_parallel", Type::Parallel)]),
];

/// The name of a step's core: what it does.
pub(super) fn core(step: &Map<String, Value>) -> Option<&'static str> {
    CORES.iter().map(|c| c.0).find(|name| step.contains_key(*name))
}

/// The fields a step has that it should not.
pub(super) fn unknown(step: &Map<String, Value>) -> Vec<&str> {
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

/// Reads one step. Unknown fields stay in it: they are a matter of validation.
pub(super) fn read(value: Value) -> Result<Value, String> {
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
    let reader = |owner| Reader {
        strict: false,
        path: Vec::new(),
        owner,
    };
    let mut written = Map::new();
    for (name, wanted) in &MODIFIERS {
        if let Some(value) = map.remove(*name) {
            let value = reader("")
                .read(value, *wanted)
                .map_err(|e| format!("malformed {name} step: {e}"))?;
            written.insert((*name).to_owned(), value);
        }
    }
    let (known, unknown): (Map<_, _>, Map<_, _>) = map
        .into_iter()
        .partition(|(key, _)| core.1.iter().any(|f| f.0 == key));
    let known = reader(core.0)
        .object(known.into(), core, core.0)
        .map_err(|e| format!("malformed {} step: {e}", core.0))?;
    if let Value::Object(known) = known {
        written.extend(known);
    }
    written.extend(unknown);
    Ok(Value::Object(written))
}

/// The resource a get or a put is of.
pub fn resource_of(step: &Value) -> Option<&str> {
    let name = step.get("put").or_else(|| step.get("get"))?.as_str()?;
    Some(step["resource"].as_str().unwrap_or(name))
}

/// The steps right inside of this one, hooks included.
pub(super) fn inside(step: &Value) -> impl Iterator<Item = &Value> {
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

/// Visits every step of a job or a step.
pub fn each_step<'a>(of: &'a Value, visit: &mut dyn FnMut(&'a Value)) {
    for step in inside(of) {
        visit(step);
        each_step(step, visit);
    }
}
