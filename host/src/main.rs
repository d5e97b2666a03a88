//! The `ostler` binary; everything is in the library.

fn main() -> std::process::ExitCode {
    ostler::run()
}
