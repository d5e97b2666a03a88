//! The instructions of a reconcile and of an event.

use std::{sync::Arc, time::Duration};

use ostler::testing::{
    dispatcher::Cause,
    object::KubeObject,
    plugin::{SlotId, load},
    queue::{Priority, Work},
    reconcile::{Controller, run_once::ReconcileStep},
    scope::Projection,
    store::{Put, VersionSource},
};
use ostler_test_harness::{Lab, instructions::count_instructions, probe, scenario};

use super::{cached_config_map, check_limits, count_reconciles, create_store, start_greetings};

/// Objects that are in a store before another one is put into it.
const STORED_OBJECT_COUNT: usize = 8;

/// Creates a controller beside that of the host, with its services and its plugin, whose reconciles run where they are polled.
async fn create_controller(lab: &Lab) -> Controller {
    let (host, settings) = (lab.host(), &lab.settings);
    let (services, stats) = (host.services().clone(), host.stats().clone());
    let controller = Controller::new(services, Arc::default(), stats, Arc::new(settings.clone()));
    let controller = controller.expect("the controller is created");
    let wasm = std::fs::read(settings.plugins.join("greeting.wasm")).expect("the component");
    let loaded = load(
        &controller.engine,
        wasm,
        Some("{}"),
        &settings.grants,
        &settings.limits,
    );
    let plugin = loaded.await.expect("the plugin is loaded");
    let (slot, digest) = (SlotId::file("greeting.wasm"), plugin.digest.clone());
    let served = controller.registry.serve(&slot, &digest, plugin, None);
    served.expect("the plugin serves");
    controller
}

#[scenario(embedded = "it counts what the host executes", alone)]
async fn reconcile_without_a_change_executes_no_more_instructions_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    let controller = create_controller(&lab).await;
    let work = Work {
        // The first ones are compressed before the dictionary of their kind has learned from others.
        key: keys[keys.len() - 1].clone(),
        lane: "greeting".into(),
        causes: vec![Cause::Poll],
        attempt: 0,
        priority: Priority::Normal,
        waited: Duration::ZERO,
    };
    let reconcile = async || {
        let (step, _) = controller.reconcile_once(&work).await;
        assert_eq!(step, ReconcileStep::Done);
    };
    // Caches are filled and histories are full once.
    reconcile().await;
    reconcile().await;
    let (writes, reconciles) = (lab.api_writes(), count_reconciles(&lab, &keys));
    let counted = count_instructions(reconcile()).await;
    assert_eq!(lab.api_writes(), writes, "nothing is written");
    assert_eq!(count_reconciles(&lab, &keys), reconciles + 1);
    check_limits(&counted, "reconcile-without-change-instructions.txt");
}

/// What each object of a list or watch costs before anything reads it: it is parsed, compressed and put into the store.
#[scenario(embedded = "it counts what the host executes", alone)]
async fn cached_object_executes_no_more_instructions_than_before(_: Lab) {
    let gvk = probe::config_map();
    let store = create_store(&gvk);
    let put = |json: &[u8]| {
        let (key, object) = KubeObject::parse(&gvk, json).expect("an object");
        let put = store.put(&key, object, Projection::Full, VersionSource::Watch);
        assert!(matches!(put, Put::Changed(_)), "{key} is cached");
    };
    // Names that all of them have are kept once.
    for number in 0..STORED_OBJECT_COUNT {
        put(&cached_config_map(number));
    }
    let json = cached_config_map(STORED_OBJECT_COUNT);
    let counted = count_instructions(async { put(&json) }).await;
    check_limits(&counted, "cached-object-instructions.txt");
}
