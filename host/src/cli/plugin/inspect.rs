//! `ostler plugin inspect`: metadata, permissions and sizes of a component.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use wasmparser::{Parser, Payload};
use wit_component::{DecodedWasm, decode};
use wit_parser::{WorldItem, WorldKey};

use super::format_kilobytes;
use crate::{
    cli::{
        ask::OutputFormat,
        table::{Shade, cell, section, table},
    },
    contract::{inspection, limits::PluginLimits},
    plugin::{
        carried::{read_kinds, read_samples},
        load,
    },
    policy::{
        grants::{Grants, Permissions},
        manifest,
    },
    sandbox::engine::Engine,
};

/// Arguments of `ostler plugin inspect`.
#[derive(Args)]
#[command(
    after_help = "Exit codes:\n  0  this host can run the component\n  1  this host cannot run it\n  2  invalid arguments"
)]
pub struct PluginInspectCommand {
    /// Component file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: OutputFormat,
}

/// The description of a component.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inspection {
    file: String,
    bytes: usize,
    /// Reason why this host cannot run it; empty if it can.
    unfit: String,
    name: String,
    version: String,
    kinds: Vec<Kind>,
    max_concurrent: u32,
    /// Imported functions, by interface.
    capabilities: BTreeMap<String, Vec<String>>,
    wasi: bool,
    hooks: bool,
    /// It handles messages.
    messages: bool,
    /// Requested permissions; `None` without a manifest.
    asks: Option<Value>,
    /// The JSON schema of its configuration.
    config_schema: Option<Value>,
    /// Names of the CustomResourceDefinitions that it carries.
    crds: Vec<String>,
    /// The samples that it carries.
    samples: Vec<Value>,
    /// Sizes in bytes, by section.
    sections: BTreeMap<String, usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    kind: String,
    finalizer: Option<String>,
    selector: Option<String>,
}

impl PluginInspectCommand {
    /// Inspects the component and prints the description.
    pub async fn run(self) -> anyhow::Result<()> {
        let file = self.file.display().to_string();
        let wasm = std::fs::read(&self.file).with_context(|| format!("reading {file}"))?;
        let found = inspect_component(file, wasm).await;
        match self.output {
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&found)?),
            OutputFormat::Table => print!("{}", format_inspection(&found)),
        }
        if !found.unfit.is_empty() {
            bail!("{}: {}", found.file, found.unfit);
        }
        Ok(())
    }
}

async fn inspect_component(file: String, wasm: Vec<u8>) -> Inspection {
    let mut found = Inspection {
        file,
        bytes: wasm.len(),
        ..Inspection::default()
    };
    match inspection::inspect(&wasm) {
        Ok(fits) => {
            (found.wasi, found.hooks, found.messages) = (fits.wasi, fits.lifecycle, fits.messages);
        }
        Err(e) => found.unfit = e.to_string(),
    }
    found.sections = section_sizes(&wasm).unwrap_or_default();
    found.capabilities = list_imports(&wasm).unwrap_or_default();
    match manifest::read_manifest(&wasm) {
        Ok(manifest) => {
            let asks = manifest.as_ref().map(|manifest| &manifest.permissions);
            match read_kinds(&wasm, asks.unwrap_or(&Permissions::default())) {
                Ok(kinds) => found.crds = kinds.into_iter().map(|kind| kind.name).collect(),
                Err(e) if found.unfit.is_empty() => found.unfit = e.to_string(),
                Err(_) => {}
            }
            found.samples = read_samples(&wasm).unwrap_or_default();
            found.asks = manifest
                .as_ref()
                .and_then(|m| serde_json::to_value(&m.permissions).ok());
            found.config_schema = manifest.and_then(|m| m.config).map(|c| c.schema);
        }
        Err(e) if found.unfit.is_empty() => found.unfit = e.to_string(),
        Err(_) => {}
    }
    if found.unfit.is_empty()
        && let Err(e) = call_describe(&mut found, wasm).await
    {
        found.unfit = e;
    }
    found
}

/// Calls the component's `describe` without any capability.
async fn call_describe(found: &mut Inspection, wasm: Vec<u8>) -> Result<(), String> {
    let limits = PluginLimits::default();
    // A component with several modules needs more than the slots of one call.
    let engine = Engine::new(4, limits.memory, None, None).map_err(|e| format!("{e:#}"))?;
    let plugin = load(&engine.into(), wasm, None, &Grants::default(), &limits).await?;
    found.name = plugin.name().to_string();
    found.version.clone_from(&plugin.version);
    found.max_concurrent = plugin.max_concurrent;
    let kinds = plugin.kinds.iter().map(|k| Kind {
        kind: k.gvk.to_string(),
        finalizer: k.finalizer.as_deref().map(Into::into),
        selector: k.selector.as_ref().map(ToString::to_string),
    });
    found.kinds = kinds.collect();
    Ok(())
}

/// Imports from the contract and WASI, function by function.
fn list_imports(wasm: &[u8]) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let DecodedWasm::Component(resolve, world) = decode(wasm)? else {
        bail!("no component");
    };
    let mut all = BTreeMap::new();
    for (key, item) in &resolve.worlds[world].imports {
        let (WorldKey::Interface(_), WorldItem::Interface { id, .. }) = (key, item) else {
            continue;
        };
        let functions: Vec<_> = resolve.interfaces[*id].functions.keys().cloned().collect();
        let name = resolve.id_of(*id).unwrap_or_default();
        let name = name.strip_prefix("ostler:plugin/").unwrap_or(&name);
        // An interface with types only.
        if !functions.is_empty() {
            let name = name.split('@').next().unwrap_or(name).to_owned();
            all.insert(name, functions);
        }
    }
    Ok(all)
}

/// Sizes in bytes, by section. Everything around the modules (types, imports, linking) is one entry.
fn section_sizes(wasm: &[u8]) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut counted = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let (name, bytes) = match payload? {
            Payload::CodeSectionStart { size, .. } => ("code".into(), size as usize),
            Payload::DataSection(section) => ("data".into(), section.range().len()),
            Payload::CustomSection(section) => (format!("custom: {}", section.name()), section.range().len()),
            _ => continue,
        };
        counted += bytes;
        *found.entry(name).or_default() += bytes;
    }
    found.insert("types and linking".into(), wasm.len().saturating_sub(counted));
    Ok(found)
}

/// The description as text.
fn format_inspection(found: &Inspection) -> String {
    let fit = if found.unfit.is_empty() {
        ("yes".to_owned(), Shade::Good)
    } else {
        (format!("no: {}", found.unfit), Shade::Bad)
    };
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let mut rows = vec![
        (
            "File",
            format!("{} ({})", found.file, format_kilobytes(found.bytes)),
            Shade::Plain,
        ),
        ("Runs here", fit.0, fit.1),
        (
            "Plugin",
            format!("{} {}", found.name, found.version),
            Shade::Plain,
        ),
        ("WASI", yes(found.wasi).to_owned(), Shade::Plain),
        ("Hooks", yes(found.hooks).to_owned(), Shade::Plain),
        ("Messages", yes(found.messages).to_owned(), Shade::Plain),
    ];
    if found.name.is_empty() {
        rows.truncate(2);
    }
    if !found.crds.is_empty() {
        rows.push(("CRDs", found.crds.join(", "), Shade::Plain));
    }
    if !found.samples.is_empty() {
        let names = found.samples.iter().map(|sample| {
            let (kind, name) = (&sample["kind"], &sample["metadata"]["name"]);
            format!(
                "{}/{}",
                kind.as_str().unwrap_or_default(),
                name.as_str().unwrap_or_default()
            )
        });
        rows.push(("Samples", names.collect::<Vec<_>>().join(", "), Shade::Plain));
    }
    if found.max_concurrent > 0 {
        rows.push(("At once", found.max_concurrent.to_string(), Shade::Plain));
    }
    let rows = rows
        .into_iter()
        .map(|(what, value, shade)| vec![cell(what, Shade::Faint), cell(value, shade)]);
    let mut out = table(&[], rows);
    let plain = |words: &[&str]| words.iter().map(|w| cell(w, Shade::Plain)).collect::<Vec<_>>();
    let kinds = found.kinds.iter().map(|k| {
        let finalizer = k.finalizer.as_deref().unwrap_or_default();
        plain(&[&k.kind, finalizer, k.selector.as_deref().unwrap_or_default()])
    });
    out.push_str(&optional_section(
        "Reconciles",
        &["KIND", "FINALIZER", "SELECTOR"],
        kinds.collect(),
    ));
    let can = found.capabilities.iter();
    let can = can.map(|(name, functions)| plain(&[name, &functions.join(", ")]));
    out.push_str(&optional_section(
        "Calls",
        &["INTERFACE", "FUNCTIONS"],
        can.collect(),
    ));
    let asks = found.asks.as_ref().map(asks_text);
    out.push_str(&section(
        "Asks for",
        asks.as_deref()
            .unwrap_or("everything it is granted, since it has no manifest\n"),
    ));
    let mut sizes: Vec<_> = found.sections.iter().collect();
    sizes.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    let sizes = sizes
        .into_iter()
        .map(|(name, bytes)| plain(&[name, &format_kilobytes(*bytes)]));
    out.push_str(&optional_section("Bytes", &["WHAT", "SIZE"], sizes.collect()));
    out
}

/// Requested permissions as declared, one per line.
fn asks_text(asks: &Value) -> String {
    let mut out = String::new();
    for (what, value) in asks.as_object().into_iter().flatten() {
        match value {
            Value::Array(items) => items.iter().for_each(|i| out.push_str(&format!("{what}: {i}\n"))),
            value => out.push_str(&format!("{what}: {value}\n")),
        }
    }
    if out.is_empty() { "nothing\n".into() } else { out }
}

fn optional_section(title: &str, header: &[&str], rows: Vec<Vec<comfy_table::Cell>>) -> String {
    if rows.is_empty() {
        String::new()
    } else {
        section(title, &table(header, rows))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn unusable_component_is_reported_with_its_cause() {
        let found = inspect_component("x.wasm".into(), b"#!/bin/sh".to_vec()).await;
        assert!(found.unfit.starts_with("not WebAssembly"), "{}", found.unfit);
        let text = format_inspection(&found);
        assert!(
            text.contains("x.wasm") && text.contains("no: not WebAssembly"),
            "{text}"
        );
    }

    #[test]
    fn section_sizes_sum_to_the_file_size() {
        let mut component = b"\0asm\x0d\0\x01\0".to_vec();
        ostler_builder::component::append_section(
            &mut component,
            "ostler:manifest",
            br#"{"permissions":{"events":true}}"#,
        );
        let found = section_sizes(&component).unwrap();
        assert_eq!(found.values().sum::<usize>(), component.len());
        assert!(found.contains_key("custom: ostler:manifest"), "{found:?}");
        assert_eq!(asks_text(&json!({"events": true})), "events: true\n");
        assert_eq!(asks_text(&json!({})), "nothing\n");
    }
}
