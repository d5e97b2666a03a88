//! Number of objects, and the requests they cost a Concourse. Pure functions.

/// Kinds by which requests are reported.
pub const LOADED_KINDS: [&str; 5] = ["Instance", "Team", "Pipeline", "Job", "Build"];

const JOBS_PER_PIPELINE: usize = 10;
const BUILDS_PER_JOB: usize = 4;
/// One pipeline of this number has a job with long builds.
pub const LONG_EVERY: usize = 10;

/// Number of objects.
#[derive(Clone, Copy)]
pub struct LoadShape {
    /// Pipelines of one team.
    pub pipelines: usize,
    /// Jobs in all of them.
    pub jobs: usize,
    /// Builds of all jobs.
    pub builds: usize,
    /// Number of long builds among them, which outlast the bench.
    pub running: usize,
}

impl LoadShape {
    /// Returns the shape for a number of pipelines with ten jobs each and four builds per job.
    pub fn for_pipelines(pipelines: usize) -> Self {
        let jobs = pipelines * JOBS_PER_PIPELINE;
        Self {
            pipelines,
            jobs,
            builds: jobs * BUILDS_PER_JOB,
            running: pipelines.div_ceil(LONG_EVERY) * BUILDS_PER_JOB,
        }
    }

    /// Counts all objects, including the instance and its team.
    pub fn object_count(self) -> usize {
        2 + self.pipelines + self.jobs + self.builds
    }

    /// Returns the collections with the number of objects in each.
    pub fn kind_counts(self) -> [(&'static str, usize); 5] {
        [
            ("instances", 1),
            ("teams", 1),
            ("pipelines", self.pipelines),
            ("jobs", self.jobs),
            ("builds", self.builds),
        ]
    }

    /// Returns the numbers of a pipeline's jobs.
    pub fn jobs_of_one() -> std::ops::Range<usize> {
        0..JOBS_PER_PIPELINE
    }

    /// Iterates over the numbers of pipeline and job.
    pub fn each_job(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.pipelines).flat_map(|p| Self::jobs_of_one().map(move |j| (p, j)))
    }

    /// Iterates over the numbers of pipeline, job and build.
    pub fn each_build(self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.each_job()
            .flat_map(|(p, j)| (0..BUILDS_PER_JOB).map(move |b| (p, j, b)))
    }
}

/// Periodic requests of the objects of one kind.
pub struct Load {
    /// The kind.
    pub kind: &'static str,
    what: &'static str,
    number: usize,
    reads: usize,
    writes: usize,
    seconds: usize,
}

impl Load {
    fn per_minute(&self, requests: usize) -> f64 {
        (self.number * requests * 60) as f64 / self.seconds as f64
    }

    /// Returns the reads and writes of all objects per minute.
    pub fn requests_per_minute(&self) -> f64 {
        self.per_minute(self.reads + self.writes)
    }
}

/// Returns the requests of concourse-operator in the steady state, computed from its code. It is a lower bound: it
/// leaves out what depends on the situation, the seventh request of some pipelines and the logins (one for each child
/// whenever the status of the Instance changes).
pub fn original_load(shape: LoadShape) -> [Load; 5] {
    let load = |kind, what, number, reads, writes, seconds| Load {
        kind,
        what,
        number,
        reads,
        writes,
        seconds,
    };
    [
        // Info, workers, user, wall, teams, pipelines.
        load("Instance", "Instance", 1, 6, 0, 300),
        // The team is always saved.
        load("Team", "Team", 1, 0, 1, 300),
        // Always unpause or pause, and hide or expose.
        load("Pipeline", "Pipelines", shape.pipelines, 4, 2, 300),
        // Always unpause or pause.
        load("Job", "Jobs", shape.jobs, 1, 1, 60),
        // An event stream stays open in addition; finished builds need no requests.
        load("Build", "running Builds", shape.running, 2, 0, 30),
    ]
}

/// Sums the requests per minute.
pub fn sum_requests(load: &[Load]) -> f64 {
    load.iter().map(Load::requests_per_minute).sum()
}

/// Sums the writes per minute.
pub fn sum_writes(load: &[Load]) -> f64 {
    load.iter().map(|l| l.per_minute(l.writes)).sum()
}

/// Explains the sum as text.
pub fn format_sum(load: &[Load]) -> String {
    let part = |l: &Load, requests: usize| {
        let every = match l.seconds {
            60 => "min".to_owned(),
            s if s % 60 == 0 => format!("{} min", s / 60),
            s => format!("{s} s"),
        };
        format!("{} {} × {requests} / {every}", l.number, l.what)
    };
    let all: Vec<_> = load.iter().map(|l| part(l, l.reads + l.writes)).collect();
    let writing = load.iter().filter(|l| l.writes > 0);
    let writes: Vec<_> = writing.map(|l| part(l, l.writes)).collect();
    format!(
        "{} = {:.1} requests per minute; of them {} = {:.1} writes",
        all.join(" + "),
        sum_requests(load),
        writes.join(" + "),
        self::sum_writes(load)
    )
}

/// Returns the kind of the objects that cause requests of a route (with its method).
pub fn kind_of(route: &str) -> &'static str {
    let path = route.split_once(' ').map_or(route, |(_, path)| path);
    let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["api", "v1", "builds", ..] => "Build",
        ["api", "v1", "teams", _, "pipelines", .., "builds"] => "Build",
        ["api", "v1", "teams", _, "pipelines", _, "jobs", "{job}", ..] => "Job",
        ["api", "v1", "teams", _, "pipelines", ..] => "Pipeline",
        ["api", "v1", "teams", _, ..] => "Team",
        // Logins belong to the Instance, too, which has the account.
        _ => "Instance",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_size_has_2000_builds() {
        let shape = LoadShape::for_pipelines(50);
        assert_eq!((shape.jobs, shape.builds, shape.running), (500, 2000, 20));
        assert_eq!(shape.each_build().count(), shape.builds);
        assert_eq!(
            shape.kind_counts().iter().map(|(_, n)| n).sum::<usize>(),
            shape.object_count()
        );
    }

    #[test]
    fn original_load_is_summed() {
        let load = original_load(LoadShape::for_pipelines(50));
        assert!((sum_requests(&load) - (1.2 + 0.2 + 60.0 + 1000.0 + 80.0)).abs() < 1e-9);
        assert!((sum_writes(&load) - (0.2 + 20.0 + 500.0)).abs() < 1e-9);
        assert_eq!(
            format_sum(&load),
            "1 Instance × 6 / 5 min + 1 Team × 1 / 5 min + 50 Pipelines × 6 / 5 min + 500 Jobs × 2 / min + \
             20 running Builds × 2 / 30 s = 1141.4 requests per minute; of them 1 Team × 1 / 5 min + \
             50 Pipelines × 2 / 5 min + 500 Jobs × 1 / min = 520.2 writes"
        );
    }

    #[test]
    fn routes_map_to_kinds() {
        let pipeline = "/api/v1/teams/{team}/pipelines/{pipeline}";
        for (route, kind) in [
            ("GET /api/v1/info".to_owned(), "Instance"),
            ("GET /api/v1/teams".to_owned(), "Instance"),
            ("GET /api/v1/pipelines".to_owned(), "Instance"),
            ("POST /sky/issuer/token".to_owned(), "Instance"),
            ("GET /api/v1/teams/{team}".to_owned(), "Team"),
            (format!("GET {pipeline}"), "Pipeline"),
            (format!("GET {pipeline}/jobs"), "Pipeline"),
            (format!("PUT {pipeline}/config"), "Pipeline"),
            (format!("GET {pipeline}/jobs/{{job}}"), "Job"),
            (format!("PUT {pipeline}/jobs/{{job}}/pause"), "Job"),
            (format!("POST {pipeline}/jobs/{{job}}/builds"), "Build"),
            (format!("GET {pipeline}/builds"), "Build"),
            ("GET /api/v1/builds/{build}/events".to_owned(), "Build"),
        ] {
            assert_eq!(kind_of(&route), kind, "{route}");
        }
    }
}
