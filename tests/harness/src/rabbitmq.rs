//! A real message broker on loopback: Debian's rabbitmq-server.

mod client;
pub(crate) mod process;

use std::{
    net::SocketAddr,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{net::TcpSocket, process::Command};

pub use self::client::RabbitMqClient;
use self::process::BoundProcess;
use crate::{wait_for, workspace_root};

/// Timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// User of the broker, who administers it.
pub const RABBITMQ_USER: &str = "ostler";
/// Password of that user. Tests scan objects, logs and recordings for it.
pub const RABBITMQ_PASSWORD: &str = "rabbit-pass-0001";
/// Virtual host of a node that is not shared, and the start of the names of the others.
const DEFAULT_VHOST: &str = "tests";
/// Number of virtual hosts that one command adds to the shared node. The command takes a second, whatever their number.
const VHOST_BATCH: usize = 32;

/// A broker of one test: a virtual host of a node, which is its own or shared.
pub struct RabbitMq {
    node: Arc<RabbitMqNode>,
    vhost: String,
}

impl Deref for RabbitMq {
    type Target = RabbitMqNode;

    fn deref(&self) -> &RabbitMqNode {
        &self.node
    }
}

/// A node with its own data, ports and cookie. It ends with the test process, or with the last broker that has it.
pub struct RabbitMqNode {
    installation: Installation,
    /// Certificate of the TLS listener, which is its own authority.
    certificate: String,
    amqp: ReservedPort,
    amqps: ReservedPort,
    distribution: ReservedPort,
    epmd: ReservedPort,
    process: Mutex<Option<BoundProcess>>,
    /// Number of brokers that it has had. Virtual hosts exist for it, rounded up to whole batches.
    broker_count: tokio::sync::Mutex<usize>,
    _epmd_process: BoundProcess,
    directory: TempDir,
}

/// A port of the loopback interface. Its socket is bound without listening, so that the kernel gives the port to
/// nobody else while the broker, which shares it by `SO_REUSEADDR`, is down.
struct ReservedPort {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl ReservedPort {
    fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option of sockets");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(any).expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        Self {
            address,
            _socket: socket,
        }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

impl RabbitMq {
    /// Starts a node for one broker, which the test may stop and kill.
    pub async fn start() -> Self {
        Self {
            node: Arc::new(RabbitMqNode::start().await),
            vhost: DEFAULT_VHOST.into(),
        }
    }

    /// Returns a broker on the node that the tests of this process share, and starts that for the first one.
    pub async fn shared() -> Self {
        static SHARED: tokio::sync::Mutex<Weak<RabbitMqNode>> = tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        let node = match shared.upgrade() {
            Some(running) => running,
            None => Arc::new(RabbitMqNode::start().await),
        };
        *shared = Arc::downgrade(&node);
        drop(shared);
        let vhost = node.take_vhost().await;
        Self { node, vhost }
    }

    /// Returns its virtual host.
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// Returns its URL without credentials.
    pub fn url(&self) -> String {
        format!("amqp://{}/{}", self.amqp.address, self.vhost)
    }

    /// Returns its URL without credentials, through a proxy at this address.
    pub fn url_at(&self, proxy: SocketAddr) -> String {
        format!("amqp://{proxy}/{}", self.vhost)
    }

    /// Returns the URL of its TLS listener without credentials. The certificate is of `localhost` and `127.0.0.1`.
    pub fn tls_url(&self) -> String {
        format!("amqps://localhost:{}/{}", self.amqps.port(), self.vhost)
    }

    /// Connects to the broker, which runs or is about to.
    pub async fn connect(&self) -> RabbitMqClient {
        self.node.connect(&self.vhost).await
    }

    /// Connects once, to the broker or to a proxy of it.
    ///
    /// # Errors
    /// The broker is down.
    pub async fn try_connect(&self, address: SocketAddr) -> lapin::Result<RabbitMqClient> {
        RabbitMqClient::connect(address, &self.vhost).await
    }

    /// Returns true if no message is in any queue, ready or unacknowledged.
    pub async fn is_drained(&self) -> bool {
        let command = [
            "list_queues",
            "--vhost",
            &self.vhost,
            "--no-table-headers",
            "messages",
        ];
        let queues = self.control(&command).await;
        queues.split_whitespace().all(|messages| messages == "0")
    }

    /// Creates a user with permissions in the virtual host, each a pattern of names: to declare, to publish and to consume.
    pub async fn create_user(&self, name: &str, password: &str, permissions: [&str; 3]) {
        let [configure, write, read] = permissions;
        self.control(&["add_user", name, password]).await;
        let arguments = ["set_permissions", "--vhost", &self.vhost, name];
        self.control(&[&arguments[..], &[configure, write, read]].concat())
            .await;
    }

    /// Returns the number of connections to it, those of the test among them.
    pub async fn count_connections(&self) -> usize {
        let command = ["list_connections", "--no-table-headers", "vhost"];
        let vhosts = self.control(&command).await;
        vhosts.lines().filter(|vhost| *vhost == self.vhost).count()
    }

    /// Closes all connections from the side of the broker, as an operator does.
    pub async fn close_connections(&self, reason: &str) {
        self.control(&["close_all_connections", "--vhost", &self.vhost, reason])
            .await;
    }
}

impl RabbitMqNode {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let installation = Installation::find();
        let epmd = ReservedPort::new();
        let mut daemon = std::process::Command::new(installation.erts.join("epmd"));
        daemon.args(["-address", "127.0.0.1", "-port", &epmd.port().to_string()]);
        let node = Self {
            certificate: write_certificate(directory.path()),
            amqp: ReservedPort::new(),
            amqps: ReservedPort::new(),
            distribution: ReservedPort::new(),
            epmd,
            process: Mutex::default(),
            broker_count: tokio::sync::Mutex::default(),
            _epmd_process: BoundProcess::spawn(daemon, &directory.path().join("epmd.log")),
            installation,
            directory,
        };
        node.write_files();
        node.restart().await;
        node
    }

    /// Returns the name of a virtual host that no other broker has.
    async fn take_vhost(&self) -> String {
        let mut broker_count = self.broker_count.lock().await;
        let number = *broker_count;
        if number.is_multiple_of(VHOST_BATCH) {
            let last = number + VHOST_BATCH - 1;
            let add = format!(
                "lists:foreach(fun(N) -> \
                     V = <<\"{DEFAULT_VHOST}-\", (integer_to_binary(N))/binary>>, A = <<\".*\">>, U = <<\"{RABBITMQ_USER}\">>, \
                     ok = rabbit_vhost:add(V, U), \
                     ok = rabbit_auth_backend_internal:set_permissions(U, V, A, A, A, U) \
                 end, lists:seq({number}, {last}))."
            );
            self.control(&["eval", &add]).await;
        }
        *broker_count += 1;
        format!("{DEFAULT_VHOST}-{number}")
    }

    /// Returns the address of its AMQP listener, which stays the same.
    pub fn address(&self) -> SocketAddr {
        self.amqp.address
    }

    /// Returns the certificate of the TLS listener in PEM, which is its own authority.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    async fn connect(&self, vhost: &str) -> RabbitMqClient {
        let attempt = async || {
            // A node that is starting may accept a connection and never answer on it.
            let attempt = RabbitMqClient::connect(self.amqp.address, vhost);
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, attempt).await;
            self.check_running();
            connected.ok()?.ok()
        };
        wait_for(attempt, || format!("RabbitMQ to start:\n{}", self.log())).await
    }

    /// Kills the broker without any warning (`kill -9`) and keeps its data.
    pub fn kill(&self) {
        self.process().take();
    }

    /// Stops the broker in order, and keeps its data.
    pub async fn stop(&self) {
        let Some(mut node) = self.process().take() else {
            return;
        };
        node.send_signal(Signal::TERM);
        let look = || std::future::ready((!node.is_running()).then_some(()));
        wait_for(look, || format!("RabbitMQ to stop:\n{}", self.log())).await;
    }

    /// Starts the broker, after killing it if it runs, and waits until it accepts connections.
    pub async fn restart(&self) {
        self.spawn();
        self.connect(DEFAULT_VHOST).await.close().await;
    }

    /// Starts the broker, after killing it if it runs. [`RabbitMq::connect`] waits until it accepts connections.
    pub fn spawn(&self) {
        self.kill();
        let mut command = std::process::Command::new(self.installation.command("rabbitmq-server"));
        command.env_clear().envs(self.environment());
        // The script then becomes the node, and has no process of its own that would survive it.
        command.env("RUNNING_UNDER_SYSTEMD", "true");
        *self.process() = Some(BoundProcess::spawn(
            command,
            &self.directory.path().join("node.log"),
        ));
    }

    /// Executes `rabbitmqctl` and returns its output.
    pub async fn control(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(self.installation.command("rabbitmqctl"));
        command.env_clear().envs(self.environment());
        command.arg("--quiet").args(arguments).kill_on_drop(true);
        let output = command.output().await.expect("rabbitmqctl starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {text}{errors}"
        );
        text
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("node.log")).unwrap_or_default()
    }

    /// Returns the process id of the broker, which runs.
    pub fn node_id(&self) -> u32 {
        self.process().as_ref().expect("it runs").id()
    }

    fn process(&self) -> MutexGuard<'_, Option<BoundProcess>> {
        self.process
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Panics if the node has ended by itself.
    fn check_running(&self) {
        let ended = self.process().as_mut().is_some_and(|node| !node.is_running());
        assert!(!ended, "RabbitMQ has ended:\n{}", self.log());
    }

    fn write_files(&self) {
        let (at, path) = (
            |name: &str| self.directory.path().join(name),
            self.directory.path().display(),
        );
        let config = format!(
            "listeners.tcp.1 = {amqp}\n\
             listeners.ssl.1 = {amqps}\n\
             ssl_options.cacertfile = {path}/certificate.pem\n\
             ssl_options.certfile = {path}/certificate.pem\n\
             ssl_options.keyfile = {path}/key.pem\n\
             ssl_options.verify = verify_none\n\
             default_user = {RABBITMQ_USER}\n\
             default_pass = {RABBITMQ_PASSWORD}\n\
             default_vhost = {DEFAULT_VHOST}\n\
             log.console = true\n\
             log.console.level = info\n\
             log.file = false\n\
             # Of the machine's memory and disk it takes little: several run at once.\n\
             vm_memory_high_watermark.absolute = 256MiB\n\
             disk_free_limit.absolute = 1MB\n\
             raft.wal_max_size_bytes = 4194304\n",
            amqp = self.amqp.address,
            amqps = self.amqps.address,
        );
        std::fs::write(at("rabbitmq.conf"), config).expect("configuration written");
        std::fs::write(at("enabled_plugins"), "[].\n").expect("plugins written");
        let cookie = at(".erlang.cookie");
        let secret: String = self.directory.path().to_string_lossy().replace('/', "-");
        std::fs::write(&cookie, secret).expect("cookie written");
        // Erlang refuses a cookie that others can read.
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        std::fs::set_permissions(&cookie, owner_only).expect("permissions of the cookie");
        std::fs::create_dir(at("bin")).expect("a folder");
        // `erl` of the package is a script for an installation in `/usr`.
        std::os::unix::fs::symlink(self.installation.erts.join("erlexec"), at("bin/erl")).expect("a link");
    }

    /// Returns the environment of the commands of the broker.
    fn environment(&self) -> Vec<(&'static str, String)> {
        let path = self.directory.path().display();
        let distribution = self.distribution.port();
        vec![
            ("PATH", format!("{path}/bin:/usr/bin:/bin")),
            // Has the cookie.
            ("HOME", path.to_string()),
            ("LANG", "C.UTF-8".into()),
            ("ROOTDIR", self.installation.erlang.display().to_string()),
            ("BINDIR", self.installation.erts.display().to_string()),
            ("EMU", "beam".into()),
            ("PROGNAME", "erl".into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_EPMD_PORT", self.epmd.port().to_string()),
            ("RABBITMQ_NODENAME", "ostler@localhost".into()),
            ("RABBITMQ_DIST_PORT", distribution.to_string()),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".into()),
            ("RABBITMQ_CONFIG_FILE", format!("{path}/rabbitmq.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", format!("{path}/enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", format!("{path}/data")),
            ("RABBITMQ_LOG_BASE", format!("{path}/log")),
            ("RABBITMQ_CTL_ERL_ARGS", "-dist_listen false".into()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}".into(),
            ),
        ]
    }
}

/// The files of the broker and of Erlang.
struct Installation {
    /// Folder of the commands of the broker.
    commands: PathBuf,
    /// Root of Erlang.
    erlang: PathBuf,
    /// Binaries of Erlang's runtime.
    erts: PathBuf,
}

impl Installation {
    /// Finds them below `OSTLER_TEST_RABBITMQ`, which `cargo xtask test` sets, or where that command puts them.
    fn find() -> Self {
        let root = std::env::var_os("OSTLER_TEST_RABBITMQ")
            .map_or_else(|| workspace_root().join("target/rabbitmq-server"), PathBuf::from);
        let (versions, erlang) = (root.join("usr/lib/rabbitmq/lib"), root.join("usr/lib/erlang"));
        let find = |folder: &Path, prefix: &str| {
            let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
            found.map(|entry| std::fs::canonicalize(entry.path()).expect("a folder"))
        };
        let (Some(broker), Some(erts)) = (find(&versions, "rabbitmq_server-"), find(&erlang, "erts-")) else {
            panic!(
                "no rabbitmq-server in {}: run the test by `cargo xtask test`, which fetches it",
                root.display()
            );
        };
        Self {
            commands: broker.join("sbin"),
            erlang: std::fs::canonicalize(erlang).expect("a folder"),
            erts: erts.join("bin"),
        }
    }

    fn command(&self, name: &str) -> PathBuf {
        self.commands.join(name)
    }
}

/// Writes a new certificate and its key, and returns the certificate in PEM.
fn write_certificate(directory: &Path) -> String {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let certificate = certified.cert.pem();
    std::fs::write(directory.join("certificate.pem"), &certificate).expect("certificate written");
    std::fs::write(directory.join("key.pem"), certified.signing_key.serialize_pem()).expect("key written");
    certificate
}
