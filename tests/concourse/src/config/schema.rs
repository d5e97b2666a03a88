//! The types of a pipeline config: which fields, which are left out when empty, what is said of a wrong type.

use serde_json::{Map, Value};

use super::steps;

/// A type of a pipeline config.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    Any,
    Text,
    Number,
    Flag,
    /// A map of anything, with its Go name.
    Object(&'static str),
    /// A map of strings; numbers and flags become strings.
    Texts(&'static str),
    List(&'static Type, &'static str),
    Struct(&'static Struct),
    Step,
    Parallel,
}

/// A struct's Go name and fields.
#[derive(Debug)]
pub(super) struct Struct(pub &'static str, pub &'static [Field]);

/// A field: name, type, and whether it is written when empty.
#[derive(Debug)]
pub(super) struct Field(pub &'static str, pub Type, pub bool);

/// Left out when empty.
const fn omit(name: &'static str, kind: Type) -> Field {
    Field(name, kind, false)
}

/// Always written.
const fn keep(name: &'static str, kind: Type) -> Field {
    Field(name, kind, true)
}

use Type::{Any, Flag, List, Number, Object, Parallel, Step, Text, Texts};

pub(super) const SOURCE: Type = Object("atc.Source");
pub(super) const PARAMS: Type = Object("atc.Params");
pub(super) const TAGS: Type = List(&Text, "atc.Tags");
pub(super) const TEXTS: Type = List(&Text, "[]string");
pub(super) const STEPS: Type = List(&Step, "[]atc.Step");

static CONFIG: Struct = Struct(
    "Config",
    &[
        omit("groups", List(&Type::Struct(&GROUP), "atc.GroupConfigs")),
        omit(
            "var_sources",
            List(&Type::Struct(&VAR_SOURCE), "atc.VarSourceConfigs"),
        ),
        omit("resources", List(&Type::Struct(&RESOURCE), "atc.ResourceConfigs")),
        omit(
            "resource_types",
            List(&Type::Struct(&RESOURCE_TYPE), "atc.ResourceTypes"),
        ),
        omit("prototypes", List(&Type::Struct(&PROTOTYPE), "atc.Prototypes")),
        omit("jobs", List(&Type::Struct(&JOB), "atc.JobConfigs")),
        omit("display", Type::Struct(&DISPLAY)),
    ],
);
static GROUP: Struct = Struct(
    "GroupConfig",
    &[keep("name", Text), omit("jobs", TEXTS), omit("resources", TEXTS)],
);
static VAR_SOURCE: Struct = Struct(
    "VarSourceConfig",
    &[keep("name", Text), keep("type", Text), keep("config", Any)],
);
static DISPLAY: Struct = Struct(
    "DisplayConfig",
    &[omit("background_image", Text), omit("background_filter", Text)],
);
static RESOURCE: Struct = Struct(
    "ResourceConfig",
    &[
        keep("name", Text),
        omit("old_name", Text),
        omit("public", Flag),
        omit("webhook_token", Text),
        keep("type", Text),
        keep("source", SOURCE),
        omit("check_every", Text),
        omit("check_timeout", Text),
        omit("tags", TAGS),
        omit("version", Texts("atc.Version")),
        omit("icon", Text),
        omit("expose_build_created_by", Flag),
    ],
);
const TYPE_FIELDS: &[Field] = &[
    keep("name", Text),
    keep("type", Text),
    keep("source", SOURCE),
    omit("defaults", SOURCE),
    omit("privileged", Flag),
    omit("check_every", Text),
    omit("tags", TAGS),
    omit("params", PARAMS),
];
static RESOURCE_TYPE: Struct = Struct("ResourceType", TYPE_FIELDS);
static PROTOTYPE: Struct = Struct("Prototype", TYPE_FIELDS);
static RETENTION: Struct = Struct(
    "BuildLogRetention",
    &[
        omit("builds", Number),
        omit("minimum_succeeded_builds", Number),
        omit("days", Number),
    ],
);
static JOB: Struct = Struct(
    "JobConfig",
    &[
        keep("name", Text),
        omit("old_name", Text),
        omit("public", Flag),
        omit("disable_manual_trigger", Flag),
        omit("disable_reruns", Flag),
        omit("serial", Flag),
        omit("interruptible", Flag),
        omit("serial_groups", TEXTS),
        omit("max_in_flight", Number),
        omit("build_logs_to_retain", Number),
        omit("build_log_retention", Type::Struct(&RETENTION)),
        omit("on_success", Step),
        omit("on_failure", Step),
        omit("on_abort", Step),
        omit("on_error", Step),
        omit("ensure", Step),
        keep("plan", STEPS),
    ],
);
static IMAGE: Struct = Struct(
    "ImageResource",
    &[
        omit("name", Text),
        keep("type", Text),
        keep("source", SOURCE),
        omit("version", Texts("atc.Version")),
        omit("params", PARAMS),
        omit("tags", TAGS),
    ],
);
static RUN: Struct = Struct(
    "TaskRunConfig",
    &[
        keep("path", Text),
        omit("args", TEXTS),
        omit("dir", Text),
        omit("user", Text),
    ],
);
static INPUT: Struct = Struct(
    "TaskInputConfig",
    &[keep("name", Text), omit("path", Text), omit("optional", Flag)],
);
static OUTPUT: Struct = Struct("TaskOutputConfig", &[keep("name", Text), omit("path", Text)]);
static CACHE: Struct = Struct("TaskCacheConfig", &[omit("path", Text)]);
static LIMITS: Struct = Struct("ContainerLimits", &[omit("cpu", Any), omit("memory", Any)]);
pub(super) static TASK: Struct = Struct(
    "TaskConfig",
    &[
        omit("platform", Text),
        omit("rootfs_uri", Text),
        omit("image_resource", Type::Struct(&IMAGE)),
        omit("container_limits", Type::Struct(&LIMITS)),
        omit("params", Texts("atc.TaskEnv")),
        keep("run", Type::Struct(&RUN)),
        omit("inputs", List(&Type::Struct(&INPUT), "[]atc.TaskInputConfig")),
        omit("outputs", List(&Type::Struct(&OUTPUT), "[]atc.TaskOutputConfig")),
        omit("caches", List(&Type::Struct(&CACHE), "[]atc.TaskCacheConfig")),
    ],
);
pub(super) static PARALLEL: Struct = Struct(
    "InParallelConfig",
    &[
        omit("steps", STEPS),
        omit("limit", Number),
        omit("fail_fast", Flag),
    ],
);

/// Reads a whole config; what else stands at its top is dropped.
pub(super) fn config(value: Value) -> Result<Value, String> {
    let value = match value {
        Value::Object(mut map) => {
            map.retain(|key, _| CONFIG.1.iter().any(|f| f.0 == key));
            Value::Object(map)
        }
        other => other,
    };
    Reader {
        strict: true,
        path: Vec::new(),
        owner: "Config",
    }
    .object(value, &CONFIG, "atc.Config")
}

/// Reads values of a type, knowing where it is.
pub(super) struct Reader {
    /// Whether unknown fields are refused, and scalars become strings where strings are wanted;
    /// neither holds inside of steps, which Concourse decodes on their own.
    pub strict: bool,
    pub path: Vec<&'static str>,
    pub owner: &'static str,
}

impl Reader {
    pub(super) fn read(&mut self, value: Value, wanted: Type) -> Result<Value, String> {
        match (wanted, value) {
            (_, Value::Null) => Ok(Value::Null),
            (Any, value)
            | (Text, value @ Value::String(_))
            | (Flag, value @ Value::Bool(_))
            | (Object(_), value @ Value::Object(_)) => Ok(value),
            (Number, Value::Number(n)) if n.is_i64() => Ok(Value::Number(n)),
            (Text, value @ (Value::Number(_) | Value::Bool(_))) if self.strict => {
                Ok(value.to_string().into())
            }
            (Texts(_), Value::Object(map)) => {
                let text = |value: Value| match value {
                    Value::Number(_) | Value::Bool(_) => value.to_string().into(),
                    Value::Null => "".into(),
                    other => other,
                };
                Ok(map
                    .into_iter()
                    .map(|(k, v)| (k, text(v)))
                    .collect::<Map<_, _>>()
                    .into())
            }
            (List(inner, _), Value::Array(items)) => items
                .into_iter()
                .map(|item| self.read(item, *inner))
                .collect::<Result<Vec<_>, _>>()
                .map(Value::Array),
            (Type::Struct(kind), value) => self.object(value, kind, kind.0),
            (Step, value) => steps::read(value),
            (Parallel, Value::Array(items)) => {
                self.object(serde_json::json!({ "steps": items }), &PARALLEL, "")
            }
            (Parallel, value) => self.object(value, &PARALLEL, "atc.InParallelConfig"),
            (Text, value) => Err(self.wrong(&value, "string")),
            (Number, value) => Err(self.wrong(&value, "int")),
            (Flag, value) => Err(self.wrong(&value, "bool")),
            (Object(name) | Texts(name) | List(_, name), value) => Err(self.wrong(&value, name)),
        }
    }

    pub(super) fn object(
        &mut self,
        value: Value,
        kind: &'static Struct,
        name: &str,
    ) -> Result<Value, String> {
        let mut map = match value {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other if name.contains('.') => return Err(self.wrong(&other, name)),
            other => return Err(self.wrong(&other, &format!("atc.{name}"))),
        };
        let mut written = Map::new();
        for Field(field, wanted, always) in kind.1 {
            let value = map.remove(*field).unwrap_or(Value::Null);
            let outer = std::mem::replace(&mut self.owner, kind.0);
            self.path.push(field);
            let value = self.read(value, *wanted)?;
            self.path.pop();
            self.owner = outer;
            let value = match (value, wanted) {
                (Value::Null, Text) => "".into(),
                (value, _) => value,
            };
            if *always || !empty(&value) {
                written.insert((*field).to_owned(), value);
            }
        }
        match map.keys().next() {
            Some(unknown) if self.strict => Err(format!("json: unknown field \"{unknown}\"")),
            _ => Ok(Value::Object(written)),
        }
    }

    fn wrong(&self, value: &Value, wanted: &str) -> String {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        match self.path.as_slice() {
            [] => format!("json: cannot unmarshal {found} into Go value of type {wanted}"),
            path => format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
                self.owner,
                path.join(".")
            ),
        }
    }
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}
