//! The build in Jenkins, triggered exactly once. The parameter `DEPLOYMENT_ID` identifies it: Jenkins keeps the parameters of
//! a build, so one whose trigger got no answer is found by it.

use devops_api::{
    BuildPhase, DeploymentBuild, DeploymentBuildStatus, DeploymentPhase, DeploymentState, JenkinsSettingSpec,
    job_path,
};
use devops_jenkins_client::{JenkinsServer, describe_response, is_signed};
use ostler_sdk::{RequestBuilder, Response, api, prelude::*, serde_json::Value};

use crate::{
    run::{DeploymentRun, PhaseProgress},
    settle::has_settled,
};

/// Name of the parameter that identifies the build.
const ID_PARAMETER: &str = "DEPLOYMENT_ID";
/// Fields of a build that are read.
const BUILD_FIELDS: &str = "number,queueId,building,inProgress,result";
/// Number of the newest builds among which one is searched for.
const MAX_SEARCHED_BUILDS: usize = 100;
const BUILD_FAILED: &str = "BuildRequestFailed";
const CANCEL_FAILED: &str = "CancelFailed";

/// A build of Jenkins.
#[api]
struct Build {
    number: i64,
    queue_id: Option<i64>,
    #[serde(default)]
    building: bool,
    #[serde(default)]
    in_progress: bool,
    result: Option<String>,
    actions: Vec<Value>,
}

impl Build {
    /// `building` ends before the steps after the build, `inProgress` after them.
    fn is_running(&self) -> bool {
        self.building || self.in_progress
    }
}

/// An item of Jenkins' queue.
#[api]
struct QueueItem {
    id: i64,
    #[serde(default)]
    cancelled: bool,
    executable: Option<Executable>,
    why: Option<String>,
    actions: Vec<Value>,
}

/// Result of a search for the build of a trigger that may not have arrived.
enum Search {
    /// Jenkins has it.
    Found(DeploymentBuildStatus),
    /// Jenkins has no such build, but the request may still be carried out.
    Unknown,
    /// Jenkins has no such build, and never will.
    Absent,
}

/// The build that an item of the queue has become.
#[api]
struct Executable {
    number: i64,
}

/// Jenkins' queue.
#[api]
struct Queue {
    items: Vec<QueueItem>,
}

/// The builds of a job.
#[api]
struct Builds {
    builds: Vec<Build>,
}

/// Advances the build.
pub fn advance(run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
    let Some(spec) = &run.record.spec.build else {
        run.enter(DeploymentPhase::Deploying, "Starting the sync.");
        return Ok(PhaseProgress::Next);
    };
    let Some(path) = find_job(run, spec)? else {
        let message = format!("JenkinsSetting {} does not exist.", spec.setting_ref.name);
        return Ok(PhaseProgress::wait("JenkinsSettingNotReady", message));
    };
    let remote = Remote::new(run, path, spec);
    match &run.status.build {
        None => remote.trigger_first(run),
        Some(build) => match build.phase {
            BuildPhase::Triggering => remote.search_and_trigger(run),
            BuildPhase::Queued => remote.follow_queue(run),
            BuildPhase::Running => remote.follow_build(run),
            BuildPhase::Completed | BuildPhase::Cancelled => {
                run.enter(DeploymentPhase::Deploying, "Starting the sync.");
                Ok(PhaseProgress::Next)
            }
        },
    }
}

/// Path of the pipeline; none if the setting does not exist.
fn find_job(run: &DeploymentRun, spec: &DeploymentBuild) -> Result<Option<String>, Failure> {
    let setting = run
        .ctx
        .get::<JenkinsSettingSpec>(run.record.namespace(), &spec.setting_ref.name)?;
    Ok(setting.map(|setting| {
        job_path(
            &setting.spec.project,
            &run.record.spec.environment,
            &spec.pipeline,
        )
    }))
}

/// The pipeline in Jenkins.
struct Remote<'a> {
    jenkins: JenkinsServer<'a>,
    path: String,
    spec: &'a DeploymentBuild,
}

impl<'a> Remote<'a> {
    fn new(run: &DeploymentRun<'a>, path: String, spec: &'a DeploymentBuild) -> Self {
        let jenkins = JenkinsServer::new(run.jenkins(&spec.setting_ref.name));
        Self { jenkins, path, spec }
    }

    fn send(&self, request: RequestBuilder<'a>) -> Result<Response, Failure> {
        self.jenkins.send(request).reason(BUILD_FAILED)
    }

    /// Records the attempt, and triggers the build. One with this ID may exist already, of a record that was deleted and
    /// created anew.
    fn trigger_first(&self, run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
        if let Some(found) = self.search(run)? {
            run.status.build = Some(found);
            return Ok(PhaseProgress::Next);
        }
        self.trigger(run)
    }

    /// Continues an attempt that was interrupted.
    fn search_and_trigger(&self, run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
        match self.search_settled(run)? {
            Search::Found(found) => {
                run.ctx.event(
                    "Adopted",
                    "The build was triggered by an attempt that was interrupted.",
                );
                run.status.build = Some(found);
                Ok(PhaseProgress::Next)
            }
            Search::Unknown => {
                let message = "It is not known yet whether the build was triggered.";
                Ok(PhaseProgress::wait("BuildUnknown", message))
            }
            Search::Absent => self.trigger(run),
        }
    }

    /// Searches for the build until the request cannot be carried out any more.
    fn search_settled(&self, run: &mut DeploymentRun) -> Result<Search, Failure> {
        if let Some(found) = self.search(run)? {
            return Ok(Search::Found(found));
        }
        let build = run.status.build.get_or_insert_default();
        Ok(
            match has_settled(run.ctx, run.began_at, &mut build.searched_at)? {
                true => Search::Absent,
                false => Search::Unknown,
            },
        )
    }

    fn trigger(&self, run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
        run.status.build = Some(DeploymentBuildStatus {
            triggered_at: i64::try_from(run.ctx.now()).ok(),
            ..DeploymentBuildStatus::default()
        });
        run.checkpoint()?;
        let mut form = encode_parameter(ID_PARAMETER, run.id());
        let given = self
            .spec
            .parameters
            .iter()
            .filter(|(name, _)| *name != ID_PARAMETER);
        for (name, value) in given {
            form.push('&');
            form.push_str(&encode_parameter(name, value));
        }
        let request = self
            .jenkins
            .post(format!("{}/buildWithParameters", self.path))
            .body("application/x-www-form-urlencoded", form.into_bytes());
        // Without an answer the attempt stays recorded, and the build is searched for.
        let response = self.send(request)?;
        match response.status() {
            // 303 is the answer for an item that waits in the queue already.
            201 | 303 => {}
            400 | 404 | 405 | 409 => {
                let message = format!("Jenkins refuses the build. {}", describe_response(&response));
                return run.fail(&message);
            }
            _ => {
                let message = format!("Could not trigger the build. {}", describe_response(&response));
                return Err(Failure::retry(BUILD_FAILED, message));
            }
        }
        run.ctx.event("Triggered", "Triggered the build.");
        let id = response.header("location").and_then(parse_queue_id);
        // Without an ID the next look finds the build by its parameter.
        if let (Some(id), Some(build)) = (id, &mut run.status.build) {
            build.phase = BuildPhase::Queued;
            build.queue_id = Some(id);
            return Ok(PhaseProgress::Next);
        }
        Ok(PhaseProgress::wait(
            "BuildUnknown",
            "Waiting for the build to appear in Jenkins.",
        ))
    }

    /// Searches for the build of this deployment: in the queue first, since an item leaves it for the list of builds.
    fn search(&self, run: &DeploymentRun) -> Result<Option<DeploymentBuildStatus>, Failure> {
        let before = DeploymentBuildStatus {
            searched_at: None,
            ..run.status.build.clone().unwrap_or_default()
        };
        let path = "/queue/api/json?tree=items[id,cancelled,why,actions[parameters[name,value]]]";
        let response = self.send(self.jenkins.get(path))?;
        let queue: Queue = read(&response, "read the queue")?;
        let has_id = |actions: &[Value]| has_parameter(actions, run.id());
        if let Some(item) = queue.items.into_iter().find(|item| has_id(&item.actions)) {
            return Ok(Some(DeploymentBuildStatus {
                phase: BuildPhase::Queued,
                queue_id: Some(item.id),
                ..before
            }));
        }
        let path = format!(
            "{}/api/json?tree=builds[{BUILD_FIELDS},actions[parameters[name,value]]]{{0,{MAX_SEARCHED_BUILDS}}}",
            self.path
        );
        let response = self.send(self.jenkins.get(path))?;
        if response.status() == 404 {
            return Ok(None);
        }
        let builds: Builds = read(&response, "list the builds")?;
        let found = builds.builds.into_iter().find(|build| has_id(&build.actions));
        Ok(found.map(|build| DeploymentBuildStatus {
            phase: BuildPhase::Running,
            queue_id: build.queue_id,
            number: Some(build.number),
            ..before
        }))
    }

    fn follow_queue(&self, run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
        let build = run.status.build.as_ref();
        let id = build.and_then(|build| build.queue_id).unwrap_or_default();
        let Some(item) = self.read_item(id)? else {
            return match self.search(run)? {
                Some(found) if found.phase == BuildPhase::Running => {
                    run.status.build = Some(found);
                    Ok(PhaseProgress::Next)
                }
                _ => run.fail(&format!(
                    "Jenkins has neither the item {id} of its queue nor its build any more."
                )),
            };
        };
        if item.cancelled {
            run.end(
                DeploymentState::Terminated,
                "The build was cancelled in the queue.",
            );
            return Ok(PhaseProgress::Next);
        }
        let Some(executable) = item.executable else {
            let why = item.why.unwrap_or_default();
            return Ok(PhaseProgress::wait(
                "BuildQueued",
                format!("The build waits in the queue. {why}"),
            ));
        };
        if let Some(build) = &mut run.status.build {
            build.phase = BuildPhase::Running;
            build.number = Some(executable.number);
        }
        Ok(PhaseProgress::Next)
    }

    /// Reads an item of the queue; none if it has left the queue more than five minutes ago.
    fn read_item(&self, id: i64) -> Result<Option<QueueItem>, Failure> {
        let response = self.send(self.jenkins.get(format!("/queue/item/{id}/api/json")))?;
        if response.status() == 404 {
            return Ok(None);
        }
        read(&response, "read the item of the queue").map(Some)
    }

    fn follow_build(&self, run: &mut DeploymentRun) -> Result<PhaseProgress, Failure> {
        let number = run
            .status
            .build
            .as_ref()
            .and_then(|build| build.number)
            .unwrap_or_default();
        let Some(found) = self.read_build(number)? else {
            return run.fail(&format!("Build {number} was deleted."));
        };
        let is_running = found.is_running();
        let Some(result) = found.result.filter(|_| !is_running) else {
            return Ok(PhaseProgress::wait(
                "BuildRunning",
                format!("Build {number} is running."),
            ));
        };
        if let Some(build) = &mut run.status.build {
            build.phase = BuildPhase::Completed;
            build.result = Some(result.clone());
        }
        match &*result {
            "SUCCESS" => Ok(PhaseProgress::Next),
            "ABORTED" => {
                run.end(
                    DeploymentState::Terminated,
                    &format!("Build {number} was aborted."),
                );
                Ok(PhaseProgress::Next)
            }
            _ => run.fail(&format!("Build {number} ended with {result}.")),
        }
    }

    /// Removes an item from the queue. Returns the number of the build that it has become meanwhile.
    fn cancel_item(&self, run: &DeploymentRun, id: i64) -> Result<Option<i64>, Failure> {
        let request = self.jenkins.post(format!("/queue/cancelItem?id={id}"));
        let response = self.jenkins.send(request).reason(CANCEL_FAILED)?;
        if matches!(response.status(), 401 | 403 | 500..) {
            return Err(describe_refusal(&response));
        }
        // The status says little: an item that has just left the queue is not found there.
        let Some(item) = self.read_item(id)? else {
            return Ok(self.search(run)?.and_then(|build| build.number));
        };
        match item.executable {
            Some(executable) => Ok(Some(executable.number)),
            None if item.cancelled => Ok(None),
            None => Err(describe_refusal(&response)),
        }
    }

    /// Stops a build. One that has ended already is not changed by it.
    fn stop(&self, number: i64) -> Result<(), Failure> {
        let request = self.jenkins.post(format!("{}/{number}/stop", self.path));
        let response = self.jenkins.send(request).reason(CANCEL_FAILED)?;
        if !matches!(response.status(), 200..400 | 404) {
            return Err(describe_refusal(&response));
        }
        if is_signed(&response) {
            return Ok(());
        }
        // It answers with a page, as a proxy does that asks for a login. That the request has reached it, only the build shows.
        match self.read_build(number)? {
            Some(build) if build.is_running() => Err(describe_refusal(&response)),
            _ => Ok(()),
        }
    }

    /// Reads a build; none if it was deleted.
    fn read_build(&self, number: i64) -> Result<Option<Build>, Failure> {
        let path = format!("{}/{number}/api/json?tree={BUILD_FIELDS}", self.path);
        let response = self.send(self.jenkins.get(path))?;
        if response.status() == 404 {
            return Ok(None);
        }
        read(&response, "read the build").map(Some)
    }
}

/// Cancels the build of a deployment that has ended before it.
pub fn withdraw(run: &mut DeploymentRun) -> Result<(), Failure> {
    let (Some(spec), Some(build)) = (&run.record.spec.build, &run.status.build) else {
        return Ok(());
    };
    if matches!(build.phase, BuildPhase::Completed | BuildPhase::Cancelled) {
        return Ok(());
    }
    // A setting that is gone has taken its pipelines along.
    if let Some(path) = find_job(run, spec)? {
        let remote = Remote::new(run, path, spec);
        cancel(run, &remote)?;
    }
    if let Some(build) = &mut run.status.build {
        build.phase = BuildPhase::Cancelled;
    }
    Ok(())
}

fn cancel(run: &mut DeploymentRun, remote: &Remote) -> Result<(), Failure> {
    let build = run.status.build.clone().unwrap_or_default();
    let found = match build.phase {
        BuildPhase::Triggering => match remote.search_settled(run)? {
            Search::Found(found) => found,
            Search::Absent => return Ok(()),
            Search::Unknown => {
                let message = "It is not known yet whether the build was triggered.";
                return Err(Failure::wait("BuildUnknown", message));
            }
        },
        _ => build,
    };
    let number = match (found.number, found.queue_id) {
        (Some(number), _) => Some(number),
        (None, Some(id)) => remote.cancel_item(run, id)?,
        (None, None) => None,
    };
    run.status.build = Some(DeploymentBuildStatus { number, ..found });
    number.map_or(Ok(()), |number| remote.stop(number))
}

fn describe_refusal(response: &Response) -> Failure {
    let message = format!("Could not cancel the build. {}", describe_response(response));
    Failure::retry(CANCEL_FAILED, message)
}

fn has_parameter(actions: &[Value], id: &str) -> bool {
    let parameters = actions
        .iter()
        .filter_map(|action| action["parameters"].as_array());
    let mut parameters = parameters.flatten();
    parameters.any(|parameter| parameter["name"] == ID_PARAMETER && parameter["value"] == id)
}

fn read<T: ostler_sdk::serde::de::DeserializeOwned>(response: &Response, action: &str) -> Result<T, Failure> {
    if !response.is_success() {
        let message = format!("Could not {action}. {}", describe_response(response));
        return Err(Failure::retry(BUILD_FAILED, message));
    }
    response.json().reason(BUILD_FAILED)
}

/// The ID in `…/queue/item/7/`. The rest of the URL is the server's view of itself.
fn parse_queue_id(location: &str) -> Option<i64> {
    location
        .trim_end_matches('/')
        .rsplit_once("/queue/item/")?
        .1
        .parse()
        .ok()
}

/// A parameter in `application/x-www-form-urlencoded`.
fn encode_parameter(name: &str, value: &str) -> String {
    let mut text = String::new();
    for (i, part) in [name, value].into_iter().enumerate() {
        if i > 0 {
            text.push('=');
        }
        for byte in part.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => text.push(char::from(byte)),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded_as_a_form() {
        assert_eq!(encode_parameter("A", "b c&d=é"), "A=b%20c%26d%3D%C3%A9");
    }

    #[test]
    fn queue_id_is_the_last_segment_of_the_location() {
        assert_eq!(
            parse_queue_id("https://ci.example.com/jenkins/queue/item/17/"),
            Some(17)
        );
        assert_eq!(parse_queue_id("/queue/item/17"), Some(17));
        assert_eq!(parse_queue_id("/job/x/"), None);
    }
}
