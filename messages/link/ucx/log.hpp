#pragma once

namespace troupe::messages::ucx {

/// Sends what UCX has to say to our log instead of standard output, from now on and for the whole
/// process. Where UCX_LOG_FILE names a file it goes there. Calls after the first do nothing; from
/// any thread.
void take_log();

}  // namespace troupe::messages::ucx
