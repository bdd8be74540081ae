#pragma once

namespace troupe::messages {

/// What a user can do where a link within one machine cannot be made.
inline constexpr const char* use_tcp = "use TCP (--link tcp, or transport = \"tcp\" in [link])";

}  // namespace troupe::messages
