// SPDX-License-Identifier: Apache-2.0

//! OCI images of one layer, made of a folder.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use ring::digest::{Context, SHA256, digest};
use serde_json::{Value, json};

/// Why an image cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// Install binutils and libc-bin.
    #[error("cannot run {program}")]
    Program {
        program: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// Name and default command of an image.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// Repository and tag.
    pub name: &'a str,
    pub entrypoint: &'a [&'a str],
    /// User and group, as `USER` of a Containerfile.
    pub user: &'a str,
}

impl Image<'_> {
    /// Writes an OCI archive with the files of `root`.
    pub fn write(&self, root: &Path, archive: &Path) -> Result<(), ImageError> {
        let layer = archive.with_extension("layer");
        let written = self.write_with(root, &layer, archive);
        let _ = fs::remove_file(&layer);
        written.map_err(|cause| ImageError::File {
            path: archive.to_owned(),
            cause,
        })
    }

    fn write_with(&self, root: &Path, layer: &Path, archive: &Path) -> io::Result<()> {
        let mut hashed = Hashed {
            file: io::BufWriter::new(File::create(layer)?),
            digest: Context::new(&SHA256),
        };
        let mut tar = tar::Builder::new(&mut hashed);
        tar.follow_symlinks(false);
        tar.append_dir_all(".", root)?;
        tar.finish()?;
        drop(tar);
        hashed.file.flush()?;
        let layer_digest = hex::encode(hashed.digest.finish());
        let config = json!({
            "os": "linux",
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "config": {"Entrypoint": self.entrypoint, "User": self.user, "Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        });
        let config = Blob::of(&config);
        let kind = "application/vnd.oci.image";
        let manifest = Blob::of(&json!({
            "schemaVersion": 2,
            "mediaType": format!("{kind}.manifest.v1+json"),
            "config": config.descriptor(&format!("{kind}.config.v1+json")),
            "layers": [{
                "mediaType": format!("{kind}.layer.v1.tar"),
                "digest": format!("sha256:{layer_digest}"),
                "size": fs::metadata(layer)?.len(),
            }],
        }));
        let mut entry = manifest.descriptor(&format!("{kind}.manifest.v1+json"));
        entry["annotations"] = json!({"io.containerd.image.name": self.name});
        let index = Blob::of(&json!({"schemaVersion": 2, "manifests": [entry]}));

        let mut tar = tar::Builder::new(io::BufWriter::new(File::create(archive)?));
        append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut tar, "index.json", &index.text)?;
        for blob in [&config, &manifest] {
            append(&mut tar, &format!("blobs/sha256/{}", blob.digest), &blob.text)?;
        }
        tar.append_path_with_name(layer, format!("blobs/sha256/{layer_digest}"))?;
        tar.into_inner()?.flush()
    }
}

/// A document of an image, named by its digest.
struct Blob {
    text: Vec<u8>,
    digest: String,
}

impl Blob {
    fn of(document: &Value) -> Self {
        let text = document.to_string().into_bytes();
        Self {
            digest: hex::encode(digest(&SHA256, &text)),
            text,
        }
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({"mediaType": kind, "digest": format!("sha256:{}", self.digest), "size": self.text.len()})
    }
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len().try_into().map_err(io::Error::other)?);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content)
}

struct Hashed {
    file: io::BufWriter<File>,
    digest: Context,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Copies a program without its debug information to a path in the folder of an image, and the libraries that it loads.
pub fn add_program(root: &Path, program: &Path, path: &str) -> Result<(), ImageError> {
    let target = root.join(path.trim_start_matches('/'));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| ImageError::File { path, cause }
    };
    let parent = target.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(failed(parent))?;
    let run = |program: &'static str, command: &mut Command| {
        command
            .output()
            .map_err(|cause| ImageError::Program { program, cause })
    };
    let stripped = run("strip", Command::new("strip").arg("-o").arg(&target).arg(program))?;
    if !stripped.status.success() {
        fs::copy(program, &target).map_err(failed(program))?;
    }
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).map_err(failed(&target))?;
    // A statically linked program has none.
    let libraries = run("ldd", Command::new("ldd").arg(program))?;
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    let paths = libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'));
    for library in paths {
        let target = root.join(library.trim_start_matches('/'));
        let parent = target.parent().unwrap_or(root);
        fs::create_dir_all(parent).map_err(failed(parent))?;
        fs::copy(library, &target).map_err(failed(Path::new(library)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_archive_has_the_files_of_the_folder_and_names_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/name"), "value").unwrap();
        let archive = folder.path().join("image.tar");

        let image = Image {
            name: "localhost/test:1",
            entrypoint: &["/bin/x"],
            user: "65532:65532",
        };
        image.write(&root, &archive).unwrap();

        let mut files = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(File::open(&archive).unwrap())
            .entries()
            .unwrap()
        {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        let blob = |digest: &Value| {
            let name = digest.as_str().unwrap().replace("sha256:", "blobs/sha256/");
            files[&name].clone()
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let entry = &index["manifests"][0];
        assert_eq!(
            entry["annotations"]["io.containerd.image.name"],
            "localhost/test:1"
        );
        let manifest: Value = serde_json::from_slice(&blob(&entry["digest"])).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"]["digest"])).unwrap();
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        let layer = blob(&manifest["layers"][0]["digest"]);
        let mut layer = tar::Archive::new(&layer[..]);
        let names: Vec<_> = layer
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert!(names.iter().any(|name| name.ends_with("etc/name")), "{names:?}");
    }
}
