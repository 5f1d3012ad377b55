// SPDX-License-Identifier: Apache-2.0

//! A bearer token in a file, which is replaced before it expires.

use std::path::PathBuf;
use std::time::Duration;

use hive::config::open_regular;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::target::TargetError;

/// Time after which the file is read again. Kubernetes replaces a token long before it expires.
const FRESH: Duration = Duration::from_secs(60);

/// The file, and what was in it when it was last read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    read: Mutex<(Instant, HeaderValue)>,
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`TargetError::Token`].
    pub(super) fn open(path: PathBuf) -> Result<Self, TargetError> {
        let header = load(&path).map_err(|cause| TargetError::Token {
            path: path.clone(),
            cause,
        })?;
        Ok(Self {
            path,
            read: Mutex::new((Instant::now(), header)),
        })
    }

    /// The value of the header `Authorization`. The last token stays if the file can no longer be read.
    pub(super) fn header(&self) -> HeaderValue {
        let mut read = self.read.lock();
        if read.0.elapsed() >= FRESH {
            match load(&self.path) {
                Ok(header) => *read = (Instant::now(), header),
                Err(error) => {
                    tracing::warn!(file = %self.path.display(), %error, "Cannot reload token");
                }
            }
        }
        read.1.clone()
    }
}

fn load(path: &std::path::Path) -> std::io::Result<HeaderValue> {
    let text = open_regular(path).and_then(std::io::read_to_string)?;
    // Written by hand, a token ends with a new line.
    let mut header = HeaderValue::try_from(format!("Bearer {}", text.trim()))
        .map_err(|_| std::io::Error::other("the content is not a valid token"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_replaced_token_is_used_after_a_while_and_a_lost_file_keeps_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let token = TokenFile::open(path.clone()).unwrap();
        assert_eq!(token.header(), "Bearer first");

        std::fs::write(&path, "second").unwrap();
        tokio::time::advance(FRESH / 2).await;
        assert_eq!(token.header(), "Bearer first");
        tokio::time::advance(FRESH / 2).await;
        assert_eq!(token.header(), "Bearer second");

        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(FRESH).await;
        assert_eq!(token.header(), "Bearer second");
    }

    #[tokio::test]
    async fn a_file_without_a_token_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let fault =
            |path: &std::path::Path| hive::error_chain(&TokenFile::open(path.to_owned()).unwrap_err());

        assert!(
            fault(&path).contains(&*path.to_string_lossy()),
            "{}",
            fault(&path)
        );
        let device = fault("/dev/zero".as_ref());
        assert!(
            device.contains("/dev/zero") && device.contains("regular file"),
            "{device}"
        );
        std::fs::write(&path, "two\nlines").unwrap();
        assert!(fault(&path).contains("not a valid token"), "{}", fault(&path));
        assert!(!fault(&path).contains("two"), "no part of a token is shown");
    }
}
