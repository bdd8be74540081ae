# What a program that uses Troupe may ask of its build; installed with the package.

# troupe_node_allocator(PROGRAM): jemalloc for a program that computes. Fresh pages cost a tensor ten
# times what warm ones do, so nothing is given back while the program runs.
function(troupe_node_allocator program)
  if(TROUPE_SANITIZE)
    return()  # sanitizers bring their own
  endif()
  set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/allocator.cpp)
  if(NOT EXISTS ${source})
    set(source ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../engine/stage/allocator.cpp)
  endif()
  target_sources(${program} PRIVATE ${source})
  target_link_options(${program} PRIVATE -Wl,--no-as-needed)
  target_link_libraries(${program} PRIVATE jemalloc)
endfunction()

# troupe_kernels(SOURCES or TARGETS...): files that use messages/base/simd.hpp, as user-written
# optimizers do, or targets of such files alone. Vectorised whatever the preset; and every rounding is
# one that the source spells out.
function(troupe_kernels)
  set(options -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
  foreach(each ${ARGN})
    if(TARGET ${each})
      target_compile_options(${each} PRIVATE ${options})
    else()
      set_source_files_properties(${each} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
  endforeach()
endfunction()
