# Unity builds: sources of one target are compiled several at a time, so that the headers they share
# are parsed once. A source that was edited in this working copy is compiled on its own, so that
# whoever edits waits for one file; ./dev build lists those in edited_sources.txt of the build folder.

set(TROUPE_UNITY_BATCH 8)  # the most sources of one batch; two batches at a time fit into 8 GiB

# troupe_unity_batches(TARGET SOURCES...): as few batches as the limit allows, evenly filled. Sources of one
# folder stand side by side, so that they share a batch where they can.
function(troupe_unity_batches target)
  set(folders "")
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER ${folder} folder)
    list(APPEND folders ${folder})
    list(APPEND in_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  list(LENGTH ARGN count)
  math(EXPR batches "(${count} + ${TROUPE_UNITY_BATCH} - 1) / ${TROUPE_UNITY_BATCH}")
  set(index 0)
  foreach(folder ${folders})
    foreach(source ${in_${folder}})
      math(EXPR batch "${index} * ${batches} / ${count}")
      math(EXPR index "${index} + 1")
      set_source_files_properties(${source} TARGET_DIRECTORY ${target}
        PROPERTIES UNITY_GROUP ${batch})
    endforeach()
  endforeach()
endfunction()

# Sets up the batches of one target.
function(troupe_unity_target target)
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "LIBRARY|EXECUTABLE" OR type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(listed ${target} SOURCES)
  set(sources "")
  foreach(source ${listed})
    get_filename_component(source ${source} ABSOLUTE BASE_DIR ${folder})
    if(source MATCHES "\\.cpp$" AND source IN_LIST troupe_edited)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    get_source_file_property(options ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    if(source MATCHES "\\.cpp$" AND NOT options)  # which would keep it out of every batch
      list(APPEND sources ${source})  # edited or not, so that the other batches stay as they are
    endif()
  endforeach()
  troupe_unity_batches(${target} ${sources})
  # A batch is one source to the compiler, which would warn of names local to one of its sources: that
  # those of another hide them, and that a type which uses them is seen by all who include the source.
  set(before "#pragma GCC diagnostic ignored \"-Wshadow\"
#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"")
  get_target_property(wanted ${target} UNITY_BUILD_CODE_BEFORE_INCLUDE)
  if(wanted)
    string(PREPEND before "${wanted}\n")
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
    UNITY_BUILD_CODE_BEFORE_INCLUDE "${before}")
endfunction()

# troupe_for_targets(FOLDER FUNCTION): calls the function with every target of this folder and of those below it.
function(troupe_for_targets folder function)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    cmake_language(CALL ${function} ${target})
  endforeach()
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(each ${below})
    troupe_for_targets(${each} ${function})
  endforeach()
endfunction()

# The sources that were edited, as absolute paths. A new one lets CMake run again.
set(troupe_edited_list ${PROJECT_BINARY_DIR}/edited_sources.txt)
if(NOT EXISTS ${troupe_edited_list})
  file(TOUCH ${troupe_edited_list})
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${troupe_edited_list})
file(STRINGS ${troupe_edited_list} troupe_edited)
list(TRANSFORM troupe_edited PREPEND ${PROJECT_SOURCE_DIR}/)
