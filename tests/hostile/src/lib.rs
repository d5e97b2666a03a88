//! A plugin that misbehaves as it is told, to show that it costs only its own reconcile.

use ostler_sdk::prelude::*;

/// What to do wrong.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "Hostile",
    namespaced,
    doc = "An object whose reconcile goes wrong in the way it names."
)]
pub struct HostileSpec {
    /// `behave`, `trap`, `brittle` (traps in a build that is patched to be), `panic`, `loop`, `grow`, `recurse`,
    /// `nonsense`, `call`, `chatter`, `announce` or `measure`.
    pub behaviour: String,
}

/// Which build this is. Tests put another word of the same length in its place, which makes another build.
pub static BUILD: &str = "ostler-hostile-build:sound--";

/// Misbehaves.
pub struct Misbehaviour;

impl Reconciler for Misbehaviour {
    type Spec = HostileSpec;

    fn reconcile(&self, ctx: &Context, object: &Hostile) -> Result<Outcome, Failure> {
        match &*object.spec.behaviour {
            "trap" => std::process::abort(),
            "brittle" if std::hint::black_box(BUILD).contains("brittle") => std::process::abort(),
            "panic" => panic!("as told"),
            "loop" => forever(),
            "grow" => grow(),
            "recurse" => drop(recurse(u64::MAX)),
            // A status is an object; this is none.
            "nonsense" => return Ok(Outcome::settled().status(&"nonsense")),
            "call" => while ctx.now() > 0 {},
            "chatter" => (0..100_000).for_each(|i| ctx.info(&i.to_string())),
            "announce" => (0..40).for_each(|i| ctx.event("News", &format!("number {i}"))),
            "measure" => {
                ctx.counter("measured", 3);
                ctx.gauge("depth_meters", 1.5);
            }
            _ => {}
        }
        Ok(Outcome::settled())
    }
}

fn forever() {
    let mut i = 0u64;
    loop {
        i = std::hint::black_box(i.wrapping_add(1));
    }
}

fn grow() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(std::hint::black_box(vec![1; 1 << 20]));
    }
}

fn recurse(left: u64) -> u64 {
    let frame = std::hint::black_box([left; 64]);
    if left == 0 {
        0
    } else {
        recurse(left - 1).wrapping_add(frame[(left % 64) as usize])
    }
}

ostler_sdk::plugin!(Misbehaviour);
