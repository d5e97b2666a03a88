//! Operations on an installation while objects change: leaders that are killed, upgrades and their reversal, memory attacks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use ostler::testing::{
    annotation,
    key::Gvk,
    manifest::{self, Manifest},
};
use ostler_test_harness::{
    Lab, component_path, find_condition, greeting_kind,
    process::{Signal, send_signal},
    read_component, scenario, wait_for,
};
use serde_json::{Value, json};

use super::{
    find_leader, pods, read_lease,
    three_commands::{registry_address, run_successfully},
};
use crate::{
    hostile::{hostile, object},
    plugins::make_brittle,
};

/// Number of leaders that the usual run kills.
const FEW_KILLS: usize = 3;
/// Number of leaders that the campaign kills.
const MANY_KILLS: usize = 20;
/// Number of objects that change during an upgrade.
const CHANGING_COUNT: usize = 500;
/// Number of objects whose calls take what memory they can.
const ATTACK_COUNT: usize = 30;
/// Interval of the changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);

pub(super) fn greeting(lab: &Lab, name: &str, text: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": text}})
}

/// An installation in a namespace of its own, from the registry of the node.
pub(super) struct Installed {
    pub lab: Lab,
    pub namespace: String,
    registry: String,
}

impl Installed {
    /// Installs the host, and a plugin that greets.
    async fn start(lab: Lab) -> Self {
        let installed = Self::new(lab);
        installed.install_host("0.1.0").await;
        let component = component_path("examples/greeting").display().to_string();
        installed.install_plugin("greeting", "0.1.0", &component).await;
        installed
    }

    /// An installation of which nothing is there yet.
    pub fn new(lab: Lab) -> Self {
        let (namespace, registry) = (format!("{}-system", lab.namespace), registry_address());
        let values = json!({"crds": {"install": false}, "watchNamespaces": [lab.namespace], "plainHttpRegistries": [registry]});
        std::fs::write(lab.path().join("values.yaml"), values.to_string()).expect("written");
        Self {
            lab,
            namespace,
            registry,
        }
    }

    /// Runs a command of `ostler` that has to succeed.
    pub async fn run(&self, arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        run_successfully(&self.lab, &arguments).await
    }

    /// Installs a version of the host, or replaces another one. Ends when all replicas run it.
    pub async fn install_host(&self, version: &str) {
        let image = format!("{}/ostler:{version}", self.registry);
        let command = [
            "install",
            "--namespace",
            &self.namespace,
            "--image",
            &image,
            "--values",
            "values.yaml",
        ];
        self.run(&command).await;
        let pods = self.list_pods().await;
        let images = pods
            .iter()
            .map(|pod| pod.data["spec"]["containers"][0]["image"].as_str());
        let running: Vec<_> = images.flatten().filter(|running| **running == *image).collect();
        assert_eq!(running.len(), 2, "pods of {image}");
    }

    /// Pushes a component, and installs it.
    pub async fn install_plugin(&self, name: &str, tag: &str, file: &str) {
        let reference = self.push_plugin(name, tag, file).await;
        self.install_pushed(&reference, &[]).await;
    }

    /// Pushes a component. Returns its reference.
    pub async fn push_plugin(&self, name: &str, tag: &str, file: &str) -> String {
        let reference = format!("{}/{}/{name}:{tag}", self.registry, self.lab.namespace);
        self.run(&["plugin", "push", file, &reference, "--plain-http"])
            .await;
        reference
    }

    /// Installs a component of the registry, with these options in addition.
    pub async fn install_pushed(&self, reference: &str, options: &[&str]) {
        let place = [
            "--namespace",
            &self.lab.namespace,
            "--host-namespace",
            &self.namespace,
        ];
        let command = ["plugin", "install", reference, "--plain-http", "--no-crds"];
        self.run(&[&command[..], &place, options].concat()).await;
    }

    pub async fn list_pods(&self) -> Vec<DynamicObject> {
        let pods = self.lab.api(&pods(), &self.namespace);
        let of_host = ListParams::default().labels("app.kubernetes.io/name=ostler");
        let pods = pods.list(&of_host).await.expect("pods").items;
        // Those of the former version may still end.
        let stays = |pod: &DynamicObject| pod.metadata.deletion_timestamp.is_none();
        pods.into_iter().filter(stays).collect()
    }

    /// Number of restarts of the containers of the host.
    async fn count_restarts(&self) -> u64 {
        let pods = self.list_pods().await;
        let restarts = pods
            .iter()
            .map(|pod| pod.data["status"]["containerStatuses"][0]["restartCount"].as_u64());
        restarts.flatten().sum()
    }

    /// Uninstalls plugins and host. Objects stay.
    async fn end(&self) {
        // First, since `ostler uninstall` leaves plugins alone where another test has bound a host.
        let plugins = self.lab.api(&ostler::testing::plugin::kind(), "");
        for name in ["greeting", "hostile"] {
            if plugins.get_opt(name).await.expect("an answer").is_some() {
                let orphan = json!({"metadata": {"annotations": {annotation::DELETION_POLICY: "Orphan"}}});
                plugins
                    .patch(name, &PatchParams::default(), &Patch::Merge(orphan))
                    .await
                    .expect("annotated");
                self.run(&["plugin", "uninstall", name]).await;
            }
        }
        self.run(&["uninstall", "--namespace", &self.namespace]).await;
    }

    /// Waits until there are these greetings and no others, each Ready, with a ConfigMap that says what its spec asks for.
    async fn wait_greetings(&self, names: &BTreeSet<String>) {
        let lab = &self.lab;
        let name_of = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        lab.wait_until("all objects are Ready with their last text", async || {
            let made = lab.list(&Gvk::new("", "v1", "ConfigMap")).await;
            let texts: BTreeMap<String, &Value> = made
                .iter()
                .map(|made| (name_of(made), &made["data"]["greeting"]))
                .collect();
            let is_current = |greeting: &Value| {
                let ready = find_condition(greeting, "Ready");
                let text = format!(
                    "Hello, {}!",
                    greeting["spec"]["name"].as_str().unwrap_or_default()
                );
                ready["status"] == "True"
                    && ready["observedGeneration"] == greeting["metadata"]["generation"]
                    && texts.get(&name_of(greeting)).is_some_and(|made| **made == text)
            };
            let greetings = lab.list(&greeting_kind()).await;
            greetings.iter().all(is_current)
                && greetings.iter().map(name_of).collect::<BTreeSet<_>>() == *names
        })
        .await;
    }
}

/// Finds a process of this machine by the files in its folder of `/proc`. Those of containers are visible here, too.
fn find_process(is_wanted: impl Fn(&dyn Fn(&str) -> Vec<u8>) -> bool) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| is_wanted(&|file| std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default()))
}

/// Finds the process of the host in a pod, whose name is that of its host.
pub(super) fn find_host(pod: &str) -> Option<u32> {
    let variable = format!("HOSTNAME={pod}");
    find_process(|read| {
        let environment = read("environ");
        let mut variables = environment.split(|byte| *byte == 0);
        // Not the compiler of components, its child.
        variables.any(|found| found == variable.as_bytes())
            && read("cmdline").windows(5).any(|word| word == b"\0run\0")
    })
}

/// Finds the kubelet of the node, whose folder the kubeconfig is in.
fn find_kubelet(lab: &Lab) -> Option<u32> {
    let folder = lab.kubeconfig.ancestors().nth(2).expect("the folder of the node");
    let argument = format!("--root-dir={}/kubelet", folder.display());
    find_process(|read| {
        let command = read("cmdline");
        let mut words = command.split(|byte| *byte == 0).skip(1);
        // The shell that restarts it, and the command that has entered its namespaces, have the same arguments after others.
        words.next() == Some(b"kubelet") && words.any(|word| word == argument.as_bytes())
    })
}

/// A kubelet that is killed and started again leaves the pods alone.
async fn restart_kubelet(installed: &Installed) {
    let lab = &installed.lab;
    let nodes = lab.api(&Gvk::new("coordination.k8s.io", "v1", "Lease"), "kube-node-lease");
    let read_renewal = async || {
        let leases = nodes
            .list(&ListParams::default())
            .await
            .expect("Leases of nodes")
            .items;
        leases[0].data["spec"]["renewTime"]
            .as_str()
            .expect("a time")
            .to_owned()
    };
    let restarts = installed.count_restarts().await;
    let killed = find_kubelet(lab).expect("the kubelet");
    send_signal(killed, Signal::KILL);
    let renewal = read_renewal().await;
    lab.wait_until("another kubelet renews the Lease of its node", async || {
        find_kubelet(lab).is_some_and(|found| found != killed) && read_renewal().await > renewal
    })
    .await;
    assert_eq!(
        installed.count_restarts().await,
        restarts,
        "no container was restarted"
    );
}

/// Creates greetings one after another until it is dropped.
async fn create_greetings(lab: &Lab, created: &AtomicUsize) {
    loop {
        let number = created.load(Ordering::Relaxed);
        lab.apply(greeting(lab, &format!("load-{number}"), "load")).await;
        created.store(number + 1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Kills leaders. Prints the times until an object that is created right after is Ready.
async fn kill_leaders(lab: Lab, kills: usize) {
    let _plugin = lab.lock_plugin("greeting").await;
    let installed = Installed::start(lab).await;
    let lab = &installed.lab;
    let created = AtomicUsize::new(0);
    let before = read_lease(lab, &installed.namespace).await.data["spec"]["leaseTransitions"].as_u64();
    let mut times = Vec::new();
    let pods = lab.api(&pods(), &installed.namespace);
    let killing = async {
        for kill in 0..kills {
            let led = async || {
                let replicas = installed.list_pods().await;
                let is_ready =
                    |pod: &&DynamicObject| pod.data["status"]["containerStatuses"][0]["ready"] == true;
                let leader = find_leader(lab, &installed.namespace).await;
                leader.filter(|_| replicas.iter().filter(is_ready).count() == 2)
            };
            let leader = wait_for(led, || "both replicas are ready, and one leads".to_owned()).await;
            let process = find_host(&leader).expect("its process");
            let began = Instant::now();
            send_signal(process, Signal::KILL);
            // The kubelet starts a container that ends again and again after minutes only. Another pod takes its place at once.
            pods.delete(&leader, &DeleteParams::default().grace_period(0))
                .await
                .expect("deleted");
            let name = format!("after-{kill}");
            lab.apply(greeting(lab, &name, "after")).await;
            lab.wait_ready(&greeting_kind(), &name).await;
            times.push(began.elapsed());
            assert_ne!(
                find_leader(lab, &installed.namespace).await.as_ref(),
                Some(&leader),
                "another pod leads"
            );
        }
    };
    tokio::select! {
        () = killing => {}
        () = create_greetings(lab, &created) => {}
    }
    let created = created.load(Ordering::Relaxed);
    // The one that was created when the last kill was over may exist.
    lab.apply(greeting(lab, &format!("load-{created}"), "load")).await;
    let loads = (0..=created).map(|number| format!("load-{number}"));
    let afters = (0..kills).map(|kill| format!("after-{kill}"));
    installed.wait_greetings(&loads.chain(afters).collect()).await;
    let transitions = read_lease(lab, &installed.namespace).await.data["spec"]["leaseTransitions"].as_u64();
    assert_eq!(
        transitions,
        before.map(|before| before + kills as u64),
        "one leader after another"
    );
    times.sort_unstable();
    println!(
        "{kills} leaders killed while {created} objects were created: failover p50 {:.1} s, p99 {:.1} s; all objects are Ready",
        times[kills / 2].as_secs_f64(),
        times[(kills * 99 / 100).min(kills - 1)].as_secs_f64()
    );
    installed.end().await;
}

#[scenario(node_only = "processes in containers", alone)]
async fn leaders_killed_under_load_lose_nothing(lab: Lab) {
    kill_leaders(lab, FEW_KILLS).await;
}

#[scenario(
    node_only = "processes in containers",
    alone,
    campaign = "takes seven minutes"
)]
async fn many_leaders_killed_under_load_lose_nothing(lab: Lab) {
    kill_leaders(lab, MANY_KILLS).await;
}

/// Changes greetings one after another until it is dropped.
async fn change_greetings(lab: &Lab, names: &BTreeSet<String>) {
    let api = lab.api(&greeting_kind(), &lab.namespace);
    for round in 1_u64.. {
        for name in names {
            let patch = Patch::Merge(json!({"spec": {"name": format!("round {round}")}}));
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .expect("changed");
            tokio::time::sleep(CHANGE_INTERVAL).await;
        }
    }
}

/// The host is replaced by another version and back, and its plugin by a build that traps, while objects change and calls take all memory.
#[scenario(
    node_only = "processes in containers, with the memory limit of their pod",
    alone
)]
async fn upgrades_and_memory_attacks_leave_changing_objects_correct(lab: Lab) {
    let _plugin = lab.lock_plugin("greeting").await;
    let installed = Installed::start(lab).await;
    let lab = &installed.lab;
    let names: BTreeSet<String> = (0..CHANGING_COUNT).map(|number| format!("g-{number}")).collect();
    for name in &names {
        lab.apply(greeting(lab, name, "first")).await;
    }
    let upgrades = async {
        let mut times = Vec::new();
        for version in ["0.2.0", "0.1.0"] {
            let began = Instant::now();
            installed.install_host(version).await;
            times.push(format!("{:.1} s to {version}", began.elapsed().as_secs_f64()));
        }
        println!("{CHANGING_COUNT} objects change: {}", times.join(", "));
        restart_kubelet(&installed).await;
        attack_memory(&installed).await;
        roll_back_canary(&installed).await;
    };
    tokio::select! {
        () = upgrades => {}
        () = change_greetings(lab, &names) => {}
    }
    installed.wait_greetings(&names).await;
    installed.end().await;
}

/// Writes a build of the hostile plugin that asks for nothing but its kind. Returns its path.
fn write_hostile(lab: &Lab, name: &str, wasm: &[u8]) -> String {
    let text = "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}]}";
    let asks = Manifest::parse(text, "plugin.yaml").expect("a manifest");
    let path = lab.path().join(format!("{name}.wasm"));
    let component = manifest::embed_manifest(wasm, &asks).expect("a component");
    std::fs::write(&path, component).expect("written");
    path.display().to_string()
}

/// Components that take what memory they can: their calls end, and the pod does not.
async fn attack_memory(installed: &Installed) {
    let lab = &installed.lab;
    let component = write_hostile(lab, "sound", &read_component("hostile/hostile"));
    installed.install_plugin("hostile", "sound", &component).await;
    let restarts = installed.count_restarts().await;
    for number in 0..ATTACK_COUNT {
        let behaviour = ["grow", "hold-memory"][number % 2];
        lab.apply(object(lab, &format!("attack-{number}"), behaviour))
            .await;
    }
    // Calls wait for each other's memory and for a share of the CPU, so that the last ones fail after minutes.
    lab.wait_until("many attackers say why they fail", async || {
        let attackers = lab.list(&hostile()).await;
        let failed = attackers
            .iter()
            .filter(|object| find_condition(object, "Ready")["status"] == "False");
        failed.count() >= ATTACK_COUNT / 3
    })
    .await;
    assert_eq!(
        installed.count_restarts().await,
        restarts,
        "the pods were not killed for their memory"
    );
    for number in 0..ATTACK_COUNT {
        lab.delete(&hostile(), &format!("attack-{number}")).await;
    }
}

/// A build that traps for its part of the objects is taken back.
async fn roll_back_canary(installed: &Installed) {
    let lab = &installed.lab;
    for number in 0..4 {
        lab.apply(object(lab, &format!("h{number}"), "behave")).await;
        lab.wait_ready(&hostile(), &format!("h{number}")).await;
    }
    let file = write_hostile(lab, "brittle", &make_brittle(&read_component("hostile/hostile")));
    let reference = format!("{}/{}/hostile:brittle", installed.registry, lab.namespace);
    let push = ["plugin", "push", &file, &reference, "--plain-http"];
    let pinned = installed.run(&push).await;
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let canary = json!({"spec": {"canary": {"source": {"oci": {"reference": pinned.trim()}}, "objects": {"weight": 100}}}});
    plugins
        .patch("hostile", &PatchParams::default(), &Patch::Merge(canary))
        .await
        .expect("patched");
    let wait_state = async |state: &str| {
        lab.wait_until(&format!("the canary is {state}"), async || {
            let plugin = plugins.get("hostile").await.expect("the Plugin");
            plugin.data["status"]["canary"]["state"] == state
        })
        .await;
    };
    wait_state("Serving").await;
    // Recordings of earlier reconciles do not show the trap.
    for number in 0..4 {
        lab.apply(object(lab, &format!("h{number}"), "brittle")).await;
    }
    wait_state("RolledBack").await;
    for number in 0..4 {
        lab.wait_ready(&hostile(), &format!("h{number}")).await;
        lab.delete(&hostile(), &format!("h{number}")).await;
    }
}
