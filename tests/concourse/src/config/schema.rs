//! The types of a pipeline config: fields, `omitempty`, and the error texts of Go's JSON decoder.

use serde_json::{Map, Value};

use super::steps;

/// A type of a pipeline config.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    Any,
    Text,
    Number,
    Flag,
    /// A map with values of any type, and its Go name.
    Object(&'static str),
    /// A map of strings, to which numbers and booleans are converted.
    Texts(&'static str),
    List(&'static Type, &'static str),
    Struct(&'static Struct),
    Step,
    Parallel,
}

/// A struct's Go name and fields.
#[derive(Debug)]
pub(super) struct Struct(pub &'static str, pub &'static [Field]);

/// A field: name, type, and true when it is written although empty.
#[derive(Debug)]
pub(super) struct Field(pub &'static str, pub Type, pub bool);

/// Declares a field that is omitted when empty.
const fn omit_empty(name: &'static str, kind: Type) -> Field {
    Field(name, kind, false)
}

/// Declares a field that is always written.
const fn keep_empty(name: &'static str, kind: Type) -> Field {
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
        omit_empty("groups", List(&Type::Struct(&GROUP), "atc.GroupConfigs")),
        omit_empty(
            "var_sources",
            List(&Type::Struct(&VAR_SOURCE), "atc.VarSourceConfigs"),
        ),
        omit_empty("resources", List(&Type::Struct(&RESOURCE), "atc.ResourceConfigs")),
        omit_empty(
            "resource_types",
            List(&Type::Struct(&RESOURCE_TYPE), "atc.ResourceTypes"),
        ),
        omit_empty("prototypes", List(&Type::Struct(&PROTOTYPE), "atc.Prototypes")),
        omit_empty("jobs", List(&Type::Struct(&JOB), "atc.JobConfigs")),
        omit_empty("display", Type::Struct(&DISPLAY)),
    ],
);
static GROUP: Struct = Struct(
    "GroupConfig",
    &[
        keep_empty("name", Text),
        omit_empty("jobs", TEXTS),
        omit_empty("resources", TEXTS),
    ],
);
static VAR_SOURCE: Struct = Struct(
    "VarSourceConfig",
    &[
        keep_empty("name", Text),
        keep_empty("type", Text),
        keep_empty("config", Any),
    ],
);
static DISPLAY: Struct = Struct(
    "DisplayConfig",
    &[
        omit_empty("background_image", Text),
        omit_empty("background_filter", Text),
    ],
);
static RESOURCE: Struct = Struct(
    "ResourceConfig",
    &[
        keep_empty("name", Text),
        omit_empty("old_name", Text),
        omit_empty("public", Flag),
        omit_empty("webhook_token", Text),
        keep_empty("type", Text),
        keep_empty("source", SOURCE),
        omit_empty("check_every", Text),
        omit_empty("check_timeout", Text),
        omit_empty("tags", TAGS),
        omit_empty("version", Texts("atc.Version")),
        omit_empty("icon", Text),
        omit_empty("expose_build_created_by", Flag),
    ],
);
const TYPE_FIELDS: &[Field] = &[
    keep_empty("name", Text),
    keep_empty("type", Text),
    keep_empty("source", SOURCE),
    omit_empty("defaults", SOURCE),
    omit_empty("privileged", Flag),
    omit_empty("check_every", Text),
    omit_empty("tags", TAGS),
    omit_empty("params", PARAMS),
];
static RESOURCE_TYPE: Struct = Struct("ResourceType", TYPE_FIELDS);
static PROTOTYPE: Struct = Struct("Prototype", TYPE_FIELDS);
static RETENTION: Struct = Struct(
    "BuildLogRetention",
    &[
        omit_empty("builds", Number),
        omit_empty("minimum_succeeded_builds", Number),
        omit_empty("days", Number),
    ],
);
static JOB: Struct = Struct(
    "JobConfig",
    &[
        keep_empty("name", Text),
        omit_empty("old_name", Text),
        omit_empty("public", Flag),
        omit_empty("disable_manual_trigger", Flag),
        omit_empty("disable_reruns", Flag),
        omit_empty("serial", Flag),
        omit_empty("interruptible", Flag),
        omit_empty("serial_groups", TEXTS),
        omit_empty("max_in_flight", Number),
        omit_empty("build_logs_to_retain", Number),
        omit_empty("build_log_retention", Type::Struct(&RETENTION)),
        omit_empty("on_success", Step),
        omit_empty("on_failure", Step),
        omit_empty("on_abort", Step),
        omit_empty("on_error", Step),
        omit_empty("ensure", Step),
        keep_empty("plan", STEPS),
    ],
);
static IMAGE: Struct = Struct(
    "ImageResource",
    &[
        omit_empty("name", Text),
        keep_empty("type", Text),
        keep_empty("source", SOURCE),
        omit_empty("version", Texts("atc.Version")),
        omit_empty("params", PARAMS),
        omit_empty("tags", TAGS),
    ],
);
static RUN: Struct = Struct(
    "TaskRunConfig",
    &[
        keep_empty("path", Text),
        omit_empty("args", TEXTS),
        omit_empty("dir", Text),
        omit_empty("user", Text),
    ],
);
static INPUT: Struct = Struct(
    "TaskInputConfig",
    &[
        keep_empty("name", Text),
        omit_empty("path", Text),
        omit_empty("optional", Flag),
    ],
);
static OUTPUT: Struct = Struct(
    "TaskOutputConfig",
    &[keep_empty("name", Text), omit_empty("path", Text)],
);
static CACHE: Struct = Struct("TaskCacheConfig", &[omit_empty("path", Text)]);
static LIMITS: Struct = Struct(
    "ContainerLimits",
    &[omit_empty("cpu", Any), omit_empty("memory", Any)],
);
pub(super) static TASK: Struct = Struct(
    "TaskConfig",
    &[
        omit_empty("platform", Text),
        omit_empty("rootfs_uri", Text),
        omit_empty("image_resource", Type::Struct(&IMAGE)),
        omit_empty("container_limits", Type::Struct(&LIMITS)),
        omit_empty("params", Texts("atc.TaskEnv")),
        keep_empty("run", Type::Struct(&RUN)),
        omit_empty("inputs", List(&Type::Struct(&INPUT), "[]atc.TaskInputConfig")),
        omit_empty("outputs", List(&Type::Struct(&OUTPUT), "[]atc.TaskOutputConfig")),
        omit_empty("caches", List(&Type::Struct(&CACHE), "[]atc.TaskCacheConfig")),
    ],
);
pub(super) static PARALLEL: Struct = Struct(
    "InParallelConfig",
    &[
        omit_empty("steps", STEPS),
        omit_empty("limit", Number),
        omit_empty("fail_fast", Flag),
    ],
);

/// Reads a whole config. Unknown top-level fields are dropped.
pub(super) fn read_config(value: Value) -> Result<Value, String> {
    let value = match value {
        Value::Object(mut map) => {
            map.retain(|key, _| CONFIG.1.iter().any(|f| f.0 == key));
            Value::Object(map)
        }
        other => other,
    };
    ConfigReader {
        strict: true,
        path: Vec::new(),
        owner: "Config",
    }
    .read_struct(value, &CONFIG, "atc.Config")
}

/// Reads values of a type and tracks their path for error texts.
pub(super) struct ConfigReader {
    /// Refuses unknown fields, and converts scalars to strings where strings are expected. Not set inside of steps,
    /// which Concourse decodes separately.
    pub strict: bool,
    pub path: Vec<&'static str>,
    pub owner: &'static str,
}

impl ConfigReader {
    pub(super) fn read_value(&mut self, value: Value, wanted: Type) -> Result<Value, String> {
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
                .map(|item| self.read_value(item, *inner))
                .collect::<Result<Vec<_>, _>>()
                .map(Value::Array),
            (Type::Struct(kind), value) => self.read_struct(value, kind, kind.0),
            (Step, value) => steps::read_step(value),
            (Parallel, Value::Array(items)) => {
                self.read_struct(serde_json::json!({ "steps": items }), &PARALLEL, "")
            }
            (Parallel, value) => self.read_struct(value, &PARALLEL, "atc.InParallelConfig"),
            (Text, value) => Err(self.type_error(&value, "string")),
            (Number, value) => Err(self.type_error(&value, "int")),
            (Flag, value) => Err(self.type_error(&value, "bool")),
            (Object(name) | Texts(name) | List(_, name), value) => Err(self.type_error(&value, name)),
        }
    }

    pub(super) fn read_struct(
        &mut self,
        value: Value,
        kind: &'static Struct,
        name: &str,
    ) -> Result<Value, String> {
        let mut map = match value {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other if name.contains('.') => return Err(self.type_error(&other, name)),
            other => return Err(self.type_error(&other, &format!("atc.{name}"))),
        };
        let mut written = Map::new();
        for Field(field, wanted, always) in kind.1 {
            let value = map.remove(*field).unwrap_or(Value::Null);
            let outer = std::mem::replace(&mut self.owner, kind.0);
            self.path.push(field);
            let value = self.read_value(value, *wanted)?;
            self.path.pop();
            self.owner = outer;
            let value = match (value, wanted) {
                (Value::Null, Text) => "".into(),
                (value, _) => value,
            };
            // A pointer or an interface is empty only when it is nil: `inputs: []` of a put step stays.
            let is_omitted = match wanted {
                Any => value.is_null(),
                _ => is_go_zero(&value),
            };
            if *always || !is_omitted {
                written.insert((*field).to_owned(), value);
            }
        }
        match map.keys().next() {
            Some(unknown) if self.strict => Err(format!("json: unknown field \"{unknown}\"")),
            _ => Ok(Value::Object(written)),
        }
    }

    fn type_error(&self, value: &Value, wanted: &str) -> String {
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

fn is_go_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}
