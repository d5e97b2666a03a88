//! Log capture for the tests of this process.

use std::{
    io::Write,
    sync::{Arc, Mutex, OnceLock},
};

static CAPTURED_LOGS: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();

/// Returns everything that tests of this process have logged so far, at debug level.
pub fn captured_logs() -> String {
    let logs = CAPTURED_LOGS
        .get()
        .expect("a lab was started")
        .lock()
        .expect("lock");
    String::from_utf8_lossy(&logs).into_owned()
}

/// Starts the capture, once per process.
pub(crate) fn capture_logs() {
    CAPTURED_LOGS.get_or_init(|| {
        let logs = Arc::new(Mutex::new(Vec::new()));
        let writer = Tee(logs.clone());
        tracing_subscriber::fmt()
            .with_env_filter("info,ostler=debug,plugin=trace")
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        logs
    });
}

/// A writer that keeps the log and also prints it, so that it appears in the output of a failed test.
#[derive(Clone)]
struct Tee(Arc<Mutex<Vec<u8>>>);

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        print!("{}", String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
