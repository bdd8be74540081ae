#pragma once

namespace troupe::messages {

/// What helps where a link within one machine cannot be had.
inline constexpr const char* use_tcp = "use TCP (--link tcp, or transport = \"tcp\" in [link])";

}  // namespace troupe::messages
