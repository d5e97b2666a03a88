//! A plugin that misbehaves as the specs of its objects define, to show that this fails only its own reconcile.

mod trespass;

use ostler_sdk::{Selection, prelude::*, serde_json::Value};

/// An object whose reconcile misbehaves.
#[ostler_sdk::resource(
    group = "tests.ostler.dev",
    version = "v1alpha1",
    kind = "Hostile",
    namespaced,
    doc = "An object whose reconcile goes wrong in the way it names."
)]
pub struct HostileSpec {
    /// Action: `behave`, or one of the attacks in the plugin's source.
    pub behaviour: String,
    /// Target of the attack: a namespace or an upstream that the plugin may not access.
    pub target: Option<String>,
}

/// Marker of the build. Tests replace it by another word of the same length, which changes the digest.
pub static BUILD: &str = "ostler-hostile-build:sound--";

/// The misbehaving reconciler.
pub struct Misbehaviour;

impl Reconciler for Misbehaviour {
    type Spec = HostileSpec;

    fn reconcile(&self, ctx: &Context, object: &Hostile) -> Result<Outcome, Failure> {
        let target = object.spec.target.as_deref().unwrap_or("default");
        let here = object.namespace();
        match &*object.spec.behaviour {
            "trap" => std::process::abort(),
            "brittle" if std::hint::black_box(BUILD).contains("brittle") => std::process::abort(),
            "panic" => panic!("as requested"),
            // It fails at random.
            "random" if !ctx.now().is_multiple_of(3) => std::process::abort(),
            "loop" => loop_forever(),
            "grow" => allocate_forever(),
            // Memory below its limit, held while it computes.
            "hold-memory" => hold_memory(60),
            // Responses that together are far beyond what a reconcile may receive.
            "receive" => {
                let upstream = ctx.upstream(target);
                let requests = (0..64).map(|i| upstream.get(format!("/large?{i}"))).collect();
                let received = upstream.send_each(requests).into_iter().flatten();
                ctx.info(&format!("received {} responses", received.count()));
                return Ok(Outcome::poll(0));
            }
            "watch" => {
                for i in 0..64 {
                    let label = format!("watched-{i}=x");
                    let selection = Selection {
                        namespace: Some(here),
                        labels: Some(&label),
                        ..Selection::default()
                    };
                    let _ = ctx.list_json(&gvk("", "v1", "ConfigMap"), &selection, &[]);
                }
                return Ok(Outcome::poll(0));
            }
            "recurse" => drop(recurse(u64::MAX)),
            // Invalid, because a status must be an object.
            "nonsense" => return Ok(Outcome::await_change().status(&"nonsense")),
            "mistype" => {
                let condition = Condition::new_true("not a type", "Mistyped", "");
                return Ok(Outcome::await_change().with(condition));
            }
            "call" => while ctx.now() > 0 {},
            "chatter" => (0..100_000).for_each(|i| ctx.info(&i.to_string())),
            "announce" => (0..40).for_each(|i| ctx.event("News", &format!("number {i}"))),
            "shout" => {
                ctx.event(&"R".repeat(1 << 20), &"n".repeat(1 << 20));
                ctx.info(&"a line\nERROR forged\u{1b}[2J ".repeat(1 << 16));
            }
            "measure" => {
                ctx.counter("measured", 3);
                ctx.gauge("depth_meters", 1.5);
            }
            "series" => (0..900).for_each(|i| ctx.counter(&format!("series_{i}"), 1)),
            // Requeues at once, every time.
            "hurry" => {
                (0..50).for_each(|_| {
                    let _ = ctx.now();
                });
                return Ok(Outcome::poll(0));
            }
            "hurry-and-write" => {
                let text = ctx.now().to_string();
                ctx.apply_owned(&config_map_object(here, &object.metadata.name, &text))?;
                return Ok(Outcome::poll(0));
            }
            "ask" => {
                let upstream = ctx.upstream(target);
                for _ in 0..100 {
                    upstream.get("/").send()?;
                }
                return Ok(Outcome::poll(0));
            }
            // Small bodies that stand for large ones, one way and the other.
            "expand" => {
                trespass::expand(ctx, target);
                return Ok(Outcome::poll(0));
            }
            // Event streams without an end of a line.
            "follow" => {
                for i in 0..64 {
                    let _ = ctx.upstream(target).subscribe(format!("/stream/{i}"), &[], &[]);
                }
                return Ok(Outcome::poll(0));
            }
            "hoard" => return Ok(report_attempts(trespass::hoard(ctx))),
            "bulk" => {
                ctx.apply_owned(&config_map_object(here, "bulk", &"x".repeat(2 << 20)))?;
            }
            "bulks" => return Ok(report_attempts(trespass::bulks(ctx, here))),
            "list" => return Ok(report_attempts(trespass::list(ctx, here))),
            "hold" => return Ok(report_attempts(trespass::hold(ctx, here))),
            "subscribe" => return Ok(report_attempts(trespass::subscribe(ctx, target))),
            "checkpoint" => return Ok(report_attempts(trespass::checkpoint(ctx))),
            "trespass" => return Ok(report_attempts(trespass::trespass(ctx, object, target))),
            "inject" => return Ok(report_attempts(trespass::inject(ctx, here, target))),
            "smuggle" => return Ok(report_attempts(trespass::smuggle(ctx, target))),
            "exfiltrate" => return Ok(report_attempts(trespass::exfiltrate(ctx, target))),
            "forge" => {
                let forged = json!({
                    "conditions": [{"type": "Ready", "status": "True", "reason": "Forged", "message": "",
                        "lastTransitionTime": "2000-01-01T00:00:00Z"}],
                    "observedGeneration": 99,
                });
                let lie = Condition::new_false("Ready", "not a reason: \u{1b}[31m", "as requested");
                return Ok(Outcome::await_change().status(&forged).with(lie));
            }
            "conditions" => {
                let mut outcome = Outcome::await_change();
                for i in 0..1000 {
                    outcome = outcome.with(Condition::new_true(&format!("C{i}"), "R", ""));
                }
                return Ok(outcome);
            }
            "words" => return Err(Failure::retry("Words", "word ".repeat(1 << 12))),
            "status" => return Ok(Outcome::await_change().status(&json!({"much": "x".repeat(512 << 10)}))),
            "flood" => return Ok(Outcome::await_change().status(&json!({"much": "x".repeat(2 << 20)}))),
            _ => {}
        }
        Ok(Outcome::await_change())
    }
}

fn config_map_object(namespace: &str, name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
        "data": {"text": text}})
}

/// Reports the results of the attempts in the status, for the test to read.
fn report_attempts(attempts: Vec<String>) -> Outcome {
    Outcome::await_change().with(Condition::new_true("Tried", "Tried", attempts.join("\n")))
}

fn loop_forever() {
    let mut i = 0u64;
    loop {
        i = std::hint::black_box(i.wrapping_add(1));
    }
}

fn allocate_forever() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(std::hint::black_box(vec![1; 1 << 20]));
    }
}

/// Fills this many MiB, then computes until its time is over.
fn hold_memory(mib: usize) {
    let mut kept = std::hint::black_box(vec![1u8; mib << 20]);
    loop {
        for byte in kept.iter_mut().step_by(4096) {
            *byte = byte.wrapping_add(1);
        }
        std::hint::black_box(&mut kept);
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
