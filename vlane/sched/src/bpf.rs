//! Parts that all BPF programs here share: libbpf's messages, and the reason why a kernel refuses a
//! program.

use std::sync::Mutex;

use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::{Error, ErrorKind, Result};

/// The last lines that libbpf said: the verifier's reason is among them.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear(level: PrintLevel, text: String) {
    if !matches!(level, PrintLevel::Debug) {
        tracing::debug!("libbpf: {}", text.trim_end());
        let mut said = vlane_error::locked(&SAID);
        said.extend(text.lines().map(str::to_string));
        let surplus = said.len().saturating_sub(30);
        said.drain(..surplus);
    }
}

/// Loads an object after `prepare` has set its constants. Errors begin with `whose`.
///
/// # Errors
/// Errors from `prepare`, and the kernel's refusal with libbpf's last message.
pub fn load(
    whose: &str,
    object: &[u8],
    prepare: impl FnOnce(&mut OpenObject) -> Result<()>,
) -> Result<Object> {
    vlane_error::locked(&SAID).clear();
    libbpf_rs::set_print(Some((PrintLevel::Info, hear)));
    // libelf wants it aligned; a vector is.
    let bytes = object.to_vec();
    let mut open = ObjectBuilder::default().open_memory(&bytes).map_err(|e| {
        Error::caused_by(
            ErrorKind::Unsupported,
            format!("{whose}: libbpf cannot read the BPF program"),
            e,
        )
    })?;
    prepare(&mut open)?;
    open.load().map_err(|e| refused(whose, "the kernel does not take the BPF program", e))
}

/// The error for a program that the kernel refused, with libbpf's last message on it.
pub fn refused(whose: &str, what: &str, cause: libbpf_rs::Error) -> Error {
    let said = vlane_error::locked(&SAID).join("\n");
    let kind = match cause.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => ErrorKind::Permission,
        _ => ErrorKind::Unsupported,
    };
    let said = if said.is_empty() { String::new() } else { format!("; libbpf said:\n{said}") };
    Error::caused_by(kind, format!("{whose}: {what}{said}"), cause)
}
