//! The steps of a Stack.

use ostler_sdk::{
    KindSpec as _, SecretKey,
    prelude::*,
    provision::{Dependency, HelmApplication, Provision, Resource, StepTree, concurrent, serial, step, when},
    serde_json::Value,
};

use crate::{
    Stack, StackSpec,
    config::{Charts, StackConfig, StackInputs},
    objects,
};

/// Builds the steps: what the application needs, the application, and once that is available its Ingress and
/// its entry in the registry.
pub fn build<'a>(
    stack: &'a Stack,
    config: &'a StackConfig,
    inputs: StackInputs,
) -> Result<StepTree<'a>, Failure> {
    let spec = &stack.spec;
    let resource = |object| Resource::new(&stack.metadata, object);
    let mut needed = vec![step("SettingsApplied", resource(objects::build_settings(stack)))];
    if let Some(secret) = &spec.secret {
        let is_present = inputs.secret_digest.is_some();
        needed.push(step("SecretPresent", SecretPresent { secret, is_present }));
    }
    match &config.charts {
        Some(charts) => needed.push(when(
            spec.chart.is_some(),
            step("ChartDeployed", Chart { stack, charts }),
        )),
        // Without a driver there is neither a chart to deploy nor one to delete.
        None if spec.chart.is_some() && stack.metadata.deletion_timestamp.is_none() => {
            let message =
                "spec.chart needs a tool that deploys it: set `charts` in the configuration of the plugin";
            return Err(Failure::terminal("ChartsNotConfigured", message));
        }
        None => {}
    }
    let deployment = resource(objects::build_deployment(stack, &inputs)).ready_when("Available");
    let mut exposed = vec![when(
        spec.host.is_some(),
        step("IngressApplied", resource(objects::build_ingress(stack))),
    )];
    match &config.registry {
        Some(registry) => {
            let entry = resource(objects::build_entry(stack, &registry.namespace));
            let entry = entry.on_cluster(&registry.cluster);
            exposed.push(when(spec.registered, step("Registered", entry)));
        }
        // Without a registry there is neither an entry to make nor one to delete.
        None if spec.registered && stack.metadata.deletion_timestamp.is_none() => {
            let message =
                "spec.registered needs a registry: set `registry` in the configuration of the plugin";
            return Err(Failure::terminal("RegistryNotConfigured", message));
        }
        None => {}
    }
    Ok(serial(vec![
        step("StacksReady", UsedStacks(stack)),
        concurrent(needed),
        concurrent(vec![
            step("DeploymentAvailable", deployment),
            step("ServiceApplied", resource(objects::build_service(stack))),
        ]),
        concurrent(exposed),
    ]))
}

/// The Secret of a Stack. Pods without its key would not start.
struct SecretPresent<'a> {
    secret: &'a SecretKey,
    is_present: bool,
}

impl Provision for SecretPresent<'_> {
    fn provision(&self, _: &Context) -> Result<(), Failure> {
        if self.is_present {
            return Ok(());
        }
        let message = format!("Secret {} has no key {}.", self.secret.name, self.secret.key);
        Err(Failure::wait("NotFound", message))
    }

    fn deprovision(&self, _: &Context) -> Result<(), Failure> {
        Ok(())
    }
}

/// The Stacks that a Stack uses. All are held before the first has to be Ready.
struct UsedStacks<'a>(&'a Stack);

impl Provision for UsedStacks<'_> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        let name_stack = |name: &String| StackSpec::reference(self.0.namespace(), name);
        let names = &self.0.spec.depends_on;
        for name in names {
            ctx.hold(&name_stack(name))?;
        }
        names.iter().try_for_each(|name| {
            let used = Dependency::new(name_stack(name)).ready_when("Ready");
            used.provision(ctx)
        })
    }

    fn deprovision(&self, _: &Context) -> Result<(), Failure> {
        // The host releases the holds.
        Ok(())
    }
}

/// The chart of a Stack, by the configured tool.
struct Chart<'a> {
    stack: &'a Stack,
    charts: &'a Charts,
}

impl Chart<'_> {
    fn with_application<T>(&self, run: impl FnOnce(&HelmApplication) -> T) -> T {
        let (metadata, chart) = (&self.stack.metadata, self.stack.spec.chart.as_ref());
        // The tool has the charts of all namespaces in one.
        let name = [&*metadata.namespace, "-", &metadata.name].concat();
        run(&HelmApplication {
            owner: metadata,
            name: &name,
            namespace: &self.charts.namespace,
            target_namespace: &metadata.namespace,
            repository: chart.map_or("", |chart| &chart.repository),
            chart: chart.map_or("", |chart| &chart.name),
            version: chart.map_or("", |chart| &chart.version),
            values: Value::Object(chart.map(|chart| chart.values.clone()).unwrap_or_default()),
            driver: self.charts.driver(),
        })
    }
}

impl Provision for Chart<'_> {
    fn provision(&self, ctx: &Context) -> Result<(), Failure> {
        self.with_application(|application| application.provision(ctx))
    }

    fn deprovision(&self, ctx: &Context) -> Result<(), Failure> {
        self.with_application(|application| application.deprovision(ctx))
    }
}
